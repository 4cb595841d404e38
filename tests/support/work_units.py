"""The work units of pytest-xdist: a file is one, and so are the files that share an installation of several services.

Each process of the run would start that installation, which takes as much processor time as twenty tests.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import Any, Final

import pytest

UNITS: Final = {"end_to_end": 2, "testing": 2, "security": 1, "fuzz": 1, "edges": 1}
"""The folders whose files share an installation, and the number of units that their files are spread over."""
SCENES: Final = "_scenes.py"
"""The end of a file's name below tests/edges: it uses the installation that the edges share."""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which may be absent
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = WorkUnits().unit_of
    return scheduler


class WorkUnits:
    """Assigns each test to its work unit, in the order of collection."""

    def __init__(self) -> None:
        self._units: dict[str, str] = {}
        self._files: Counter[str] = Counter()

    def unit_of(self, nodeid: str) -> str:
        """Returns the name of the work unit of a test."""
        file = nodeid.partition("::")[0]
        if file not in self._units:
            self._units[file] = self._new_unit(file)
        return self._units[file]

    def _new_unit(self, file: str) -> str:
        folder = "edges" if file.endswith(SCENES) else PurePath(file).parent.name
        if folder not in UNITS:
            return file
        self._files[folder] += 1
        return f"{folder}-{self._files[folder] % UNITS[folder]}"
