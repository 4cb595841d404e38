"""The work units of pytest-xdist: a file is one, and so are the files that share an installation of several services.

Each process of the run would start that installation, which takes as much processor time as twenty tests.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

import pytest

UNITS: Final = frozenset({"end_to_end", "testing", "security", "processes", "limits", "fuzz"})
"""The folders whose files share an installation."""
SCENES: Final = "_scenes.py"
"""The end of a file's name below tests/edges: it uses the installation that the edges share."""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which may be absent
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # the package has no types
        """Gives work units to the workers. pytest-xdist itself runs a test that ended its worker again, for ever."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Takes the rest of the work from a worker that ended. Returns the test that ended it, if one did."""
            units = self.assigned_work.pop(node)
            ended_at = next((test for unit in units.values() for test, is_done in unit.items() if not is_done), None)
            for name, unit in units.items():
                unit.update({test: True for test in unit if test == ended_at})
                if not all(unit.values()):
                    self.workqueue[name] = unit
            for other in self.assigned_work:
                self._reschedule(other)
            return ended_at

    return Scheduling(config, log)


def unit_of(nodeid: str) -> str:
    """Returns the name of the work unit of a test."""
    file = nodeid.partition("::")[0]
    folder = PurePath(file).parent.name
    if file.endswith(SCENES):
        return "edges"
    return folder if folder in UNITS else file
