"""Imports the test modules of a run, and becomes a worker of pytest-xdist in each fork (see forked_workers.py).

python -P import_tests.py LISTENING_SOCKET_FD PYTEST_ARGUMENTS

What imports `tenure` is imported behind pytest, which rewrites the asserts in that package, too.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest


class ImportsOnly:
    """Leaves out the tests. Those of hypothesis stay: with them, its plugin reads the constants of all modules."""

    def pytest_pycollect_makeitem(self, obj: Any) -> list[Any] | None:
        return None if getattr(obj, "is_hypothesis_test", False) else []


def main(listener: socket.socket, arguments: list[str]) -> None:
    # Where an import fails, each worker repeats it and reports the error.
    pytest.main([*arguments, "-n0", "--collect-only"], plugins=[ImportsOnly()])

    from tenure.runtime.fork_server import forked
    from tests.support.fork_server import accepted

    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "the import of a test module started a thread, which no fork has"
    request = forked(accepted(listener))
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = ["-c"]
    sys.stdin = os.fdopen(0, closefd=False)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
