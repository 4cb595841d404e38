"""Workers of pytest-xdist that begin with all test modules imported: forks of one process that imports them once.

Each worker collects all tests. Two thirds of that, 10 s of processor time in each worker, are imports: the test
modules, the services, pydantic, the libraries of agents. `import_tests.py` is the process that imports them;
`start_worker.py` is what pytest-xdist starts in place of an interpreter.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from devstack import watchdog
from tenure.runtime.forks import CAN_FORK
from tests.support.store_folder import store_folder

HERE: Final = Path(__file__).parent
_OPENED: Final = pytest.StashKey[ExitStack]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    if not CAN_FORK:
        return
    arguments = map(str, config.invocation_params.args)
    opened = config.stash[_OPENED] = ExitStack()
    address = str(opened.enter_context(store_folder()) / "workers")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        importer = watchdog.launch(
            [sys.executable, "-P", str(HERE / "import_tests.py"), str(listener.fileno()), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    opened.callback(importer.wait)
    opened.callback(importer.kill)
    for spec in specs:
        spec.python = f"{sys.executable} -P {HERE / 'start_worker.py'} {address}"


def pytest_unconfigure(config: pytest.Config) -> None:
    if _OPENED in config.stash:
        config.stash[_OPENED].close()
