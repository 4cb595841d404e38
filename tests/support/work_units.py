"""The work units of pytest-xdist: a file is one, and so are the files that share an installation of several services.

Each process of the run would start that installation, which takes as much processor time as twenty tests.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final

import pytest

UNITS: Final = frozenset({"end_to_end", "testing", "security", "fuzz"})
"""The folders whose files share an installation."""
SCENES: Final = "_scenes.py"
"""The end of a file's name below tests/edges: it uses the installation that the edges share."""


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which may be absent
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler


def unit_of(nodeid: str) -> str:
    """Returns the name of the work unit of a test."""
    file = nodeid.partition("::")[0]
    folder = PurePath(file).parent.name
    if file.endswith(SCENES):
        return "edges"
    return folder if folder in UNITS else file
