"""Coverage of the page templates' branches: `if`, loop, macro and `a if b else c`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import jinja2
from jinja2 import nodes

_PASSED: Final = "branch_passed"


class Branches:
    """All branches of the rendered templates, and those taken."""

    def __init__(self) -> None:
        self._passed: dict[str, bool] = {}

    @property
    def left_out(self) -> list[str]:
        """The branches never taken: `report.html:12 else`."""
        return [branch for branch, passed in self._passed.items() if not passed]

    @property
    def templates(self) -> set[str]:
        """The rendered templates that have branches."""
        return {branch.partition(":")[0] for branch in self._passed}

    def note(self, template: nodes.Template, name: str) -> None:
        """Make each branch of a parsed template report when it is taken."""
        for choice in template.find_all(nodes.If):
            at = f"{name}:{choice.lineno}"
            choice.body = self._told(choice.body, f"{at} if")
            if not choice.elif_:
                choice.else_ = self._told(choice.else_, f"{at} else")
        for block in template.find_all((nodes.For, nodes.Macro)):
            assert isinstance(block, nodes.For | nodes.Macro)
            block.body = self._told(block.body, f"{name}:{block.lineno} {type(block).__name__.lower()}")
        for number, value in enumerate(list(template.find_all(nodes.CondExpr))):
            at = f"{name}:{value.lineno} value {number}"
            value.expr1 = self._telling(f"{at} if", value.expr1)
            value.expr2 = self._telling(f"{at} else", value.expr2 or nodes.Const(""))

    def passed(self, branch: str, value: Any = "") -> Any:
        """Note a branch taken, and return its value."""
        self._passed[branch] = True
        return value

    def _told(self, body: Iterable[nodes.Node], branch: str) -> list[nodes.Node]:
        return [nodes.Output([self._telling(branch, nodes.Const(""))]), *body]

    def _telling(self, branch: str, value: nodes.Expr) -> nodes.Expr:
        self._passed.setdefault(branch, False)
        return nodes.Call(nodes.Name(_PASSED, "load"), [nodes.Const(branch), value], [], None, None)


@contextmanager
def noting() -> Iterator[Branches]:
    """Note the branches of all templates rendered by this process meanwhile."""
    noted = Branches()

    class Noting(jinja2.Environment):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.globals[_PASSED] = noted.passed

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            template = super()._parse(source, name, filename)
            noted.note(template, name or "")
            return template

    with mock.patch.object(jinja2, "Environment", Noting):
        yield noted
