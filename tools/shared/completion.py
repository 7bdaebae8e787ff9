"""What a shell offers for a word that is being typed. Each imports what it needs only when it is asked."""

from __future__ import annotations

from pathlib import Path


def platforms(incomplete: str) -> list[str]:
    """Return the platforms that begin so; after a comma, more of them."""
    from softnpu.emulator.platforms import CODENAMES, PLATFORMS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in (*PLATFORMS, *CODENAMES) if name.startswith(last)]


def properties(incomplete: str) -> list[str]:
    """Return `KEY=` of the properties that can be set when a model is compiled."""
    from softnpu.plugin.properties import PROPERTIES, Access

    names = (name for name, record in PROPERTIES.items() if record.access is Access.RW)
    return sorted(f"{name}=" for name in names if name.startswith(incomplete))


def models(incomplete: str) -> list[str]:
    """Return the names of the catalogue."""
    from softnpu.tools.models.catalogue import CATALOGUE

    return sorted(name for name in CATALOGUE if name.startswith(incomplete))


def models_and_files(incomplete: str) -> list[str]:
    """Return the names of the catalogue, and files and folders; a folder ends with a slash."""
    folder, _, start = incomplete.rpartition("/")
    place = Path(folder or ("/" if incomplete.startswith("/") else "."))
    try:
        found = [each for each in place.iterdir() if each.name.startswith(start)]
    except OSError:
        found = []
    prefix = incomplete[: len(incomplete) - len(start)]
    return [
        *models(incomplete),
        *sorted(f"{prefix}{each.name}{'/' if each.is_dir() else ''}" for each in found),
    ]
