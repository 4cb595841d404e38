"""The work units of pytest-xdist: a file is one, and so are the files that share an installation of several services.

Each process of the run would start that installation, which takes as much processor time as twenty tests.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

UNITS: Final = {"end_to_end": 2, "testing": 2, "security": 1, "fuzz": 1}
"""The folders whose files share an installation, and the number of units that their files are spread over."""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which may be absent
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        """Gives each process one unit after another."""

        def __init__(self, config: pytest.Config, log: Any) -> None:
            super().__init__(config, log)
            self._units: dict[str, str] = {}
            self._files: Counter[str] = Counter()

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file not in self._units:
                self._units[file] = self._unit_of(file)
            return self._units[file]

        def _unit_of(self, file: str) -> str:
            folder = PurePath(file).parent.name
            if folder not in UNITS:
                return file
            self._files[folder] += 1
            return f"{folder}-{self._files[folder] % UNITS[folder]}"

    return Scheduling(config, log)
