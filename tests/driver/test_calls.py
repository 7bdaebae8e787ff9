"""The list of API functions in `docs/level-zero.md` agrees with the classes, and is complete."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator

import softnpu.driver
from softnpu.driver import extensions
from tests.conformance.call_tables import CALLS, DOCUMENT, Status

_NAMED_FIRST = re.compile(r"`((?:ze|zes|zet|zex|pfn)[A-Z]\w+)`")


def driver_classes() -> dict[str, type]:
    """The public classes of all driver modules, by name."""
    found: dict[str, type] = {}
    for module_info in pkgutil.iter_modules(softnpu.driver.__path__, "softnpu.driver."):
        module = importlib.import_module(module_info.name)
        for name, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                found[name] = value
    return found


_CLASSES = driver_classes()


def documented_methods() -> Iterator[tuple[str, str, str]]:
    """Class, method and C function of every public method whose docstring starts with a C function."""
    for class_name, kind in _CLASSES.items():
        for name, value in vars(kind).items():
            method = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            first = _NAMED_FIRST.match(inspect.getdoc(method) or "") if inspect.isfunction(method) else None
            if first is not None and not name.startswith("_"):
                yield class_name, name, first[1]


def test_the_document_counts_what_it_lists() -> None:
    rows = re.findall(r"^\| `(\w+\.hp*)` \| (\d+) \| (\d+) \| (\d+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    listed = Counter((call.header, call.status) for call in CALLS)
    assert {row[0] for row in rows} == {call.header for call in CALLS}
    for header, *counts in rows:
        assert [int(count) for count in counts] == [listed[header, status] for status in Status], header


def test_no_function_is_listed_twice() -> None:
    assert [name for name, count in Counter(call.name for call in CALLS).items() if count > 1] == []


def test_refused_or_absent_functions_name_no_method() -> None:
    assert [call.name for call in CALLS if call.status is not Status.SUPPORTED and call.python] == []


def test_every_method_that_names_its_function_is_listed() -> None:
    for class_name, method, function in documented_methods():
        (listed,) = (call for call in CALLS if call.name == function)
        listed_class, _, listed_method = listed.python.partition(".")
        assert listed_method == method, f"{function} is listed as {listed.python or listed.status.value}"
        assert issubclass(_CLASSES[class_name], _CLASSES[listed_class])


def test_remarks_name_existing_objects() -> None:
    named = [
        match
        for call in CALLS
        for match in re.findall(r"`([A-Z]\w+)\.(\w+)`", call.remark)
        if not hasattr(_CLASSES.get(match[0]), match[1])
    ]
    assert named == []


def test_every_function_of_the_extension_tables_is_listed() -> None:
    listed = {call.name for call in CALLS}
    names = [*(entry.name for entry in extensions.extension_properties()), *extensions.PRIVATE_FUNCTIONS]
    offered = {extensions.function_address(name) for name in names}
    assert [name for table in offered for name in table.functions if name not in listed] == []


def test_every_method_of_a_handle_class_is_found() -> None:
    """The docstring scan sees methods, overridden ones, and those of plain classes."""
    found = {f"{class_name}.{method}" for class_name, method, _ in documented_methods()}
    assert found >= {
        "Fence.reset",
        "CommandListImmediate.close",
        "Sysman.get_properties",
        "Device.get_status",
    }
