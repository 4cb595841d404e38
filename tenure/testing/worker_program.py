"""A worker that can be forked: `python -P -m tenure.testing.worker_program PROGRAM SOCKET_FD`.

PROGRAM is the user's, and "" is `tenure serve worker`. The process imports all that the worker needs, then forks a
worker for each request on the socket. A fork has one thread and shares the files of its parent, so a program that has
threads or open files before its worker runs is not forked: this process closes the socket, and is the worker itself.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any, Final

from tenure.agents.worker import Worker
from tenure.runtime.fast_start import imports_kept
from tenure.runtime.fork_server import forked
from tenure.runtime.forks import READY
from tenure.server_packages import server_packages
from tenure.testing.answer_schemas import build_answer_schemas
from tenure.testing.forks import MODULES

_SERVICE: Final = "services.worker.main"
_PROVIDERS: Final = ("tenure.model_providers.anthropic_models", "tenure.model_providers.openai_models")
"""A worker imports them when it runs: they take longer than all else of its start."""
_UNSTABLE: Final = ("/proc/", "/sys/", "/dev/")


class ReadFiles:
    """The files that this process has opened since `watch`: modules, and data that they read."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._seen: dict[str, int] | None = None

    def watch(self) -> None:
        """Notes each file that is opened, until `close`. Python has no way to remove the hook."""
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self._seen is None and isinstance(path := arguments[0], str):
            self._paths.add(os.path.abspath(source_from_cache(path) if path.endswith(".pyc") else path))  # noqa: PTH100  a hook stays cheap

    def close(self) -> None:
        """Ends the list."""
        self._seen = {path: _changed_at(path) for path in self._paths if not path.startswith(_UNSTABLE)}

    def are_unchanged(self) -> bool:
        """Whether none of them has changed since `close`."""
        return self._seen is not None and all(_changed_at(path) == at for path, at in self._seen.items())


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116  thousands of files
    except OSError:
        return 0


def can_be_forked(sock: socket.socket) -> bool:
    """Whether this process has one thread and no open file but its streams and the socket."""
    own = {0, 1, 2, sock.fileno()}
    opened = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208  one of them is the listing itself
    return len(os.listdir("/proc/self/task")) == 1 and not any(_is_open(fd) for fd in opened if fd not in own)  # noqa: PTH208


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _fork(sock: socket.socket, files: ReadFiles) -> None:
    """Returns in each worker, with its environment; at once, if this process is the only one."""
    files.close()
    if not can_be_forked(sock):
        sock.close()
        return
    try:
        sock.send(READY)
    except OSError:  # it took so long that the tests take this process for the worker
        return
    environment = forked(sock, lambda _request: files.are_unchanged())
    os.environ.clear()
    os.environ.update(environment)


def _imported_service() -> Any:
    with imports_kept(), server_packages("a worker", extra="server"):
        for name in _PROVIDERS:
            import_module(name)
        return import_module(_SERVICE)


def _serve(sock: socket.socket, files: ReadFiles) -> None:
    """`tenure serve worker`, forked behind its imports. It says itself which of its modules cannot be imported."""
    service = _imported_service()
    for module in filter(None, os.environ.get(MODULES, "").split(",")):
        with suppress(Exception):
            import_module(module)
    build_answer_schemas()
    _fork(sock, files)
    sys.argv[:] = ["tenure serve worker"]
    sys.exit(service.main())


def _run(program: str, sock: socket.socket, files: ReadFiles) -> None:
    """`python PROGRAM`, forked where its worker runs."""
    run = Worker.run

    def run_forked(worker: Worker) -> None:
        _imported_service()
        build_answer_schemas()
        _fork(sock, files)
        run(worker)

    Worker.run = run_forked  # type: ignore[assignment, method-assign]
    sys.argv[:] = [program]
    sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(program, run_name="__main__")


def main() -> None:
    """Runs the worker."""
    program, sock = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    sock.set_inheritable(False)
    files = ReadFiles()
    files.watch()
    if program:
        _run(program, sock, files)
    else:
        _serve(sock, files)


if __name__ == "__main__":
    main()
