"""Programs that start without importing: forked from a server that has imported the services already.

Most of a service's start is its imports (0.3 to 1.0 s of processor time), and the suite starts services more than a
thousand times. A forked child runs the same `__main__` with its own environment, folder, session and pipes. Whatever
needs a process image of its own starts the usual way: another interpreter or program, a mutated service, variables
that the loader, the interpreter or gRPC read when they start, and every program where the kernel has no pidfd.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import IO, Final

import pytest

from devstack import child_process
from tenure.runtime.forks import ForkClient, ForkedProgram
from tests.support.shared_stores import connect_to_forks

REPOSITORY: Final = Path(__file__).parents[2]
FORKED: Final = (
    "services.",
    "tenure.serve",
    "devstack.simulator",
    "tests.support.hostile_simulator",
    "tenure.cli",
    "tests.busy_tools",
)
_config: pytest.Config | None = None
READ_AT_START: Final = ("LD_", "PYTHON", "GRPC_", "MALLOC_")


def pytest_configure(config: pytest.Config) -> None:
    """Forks the programs of the embedded stack, too."""
    global _config  # noqa: PLW0603  of this process
    _config = config
    child_process.ChildProcess.launch = staticmethod(launch)


class ForkedProcess:
    """A forked program, with the part of `asyncio.subprocess.Process` that tests use; its stderr is a pipe."""

    def __init__(self, forked: ForkedProgram, stderr: asyncio.StreamReader) -> None:
        self.pid, self.stderr = forked.pid, stderr
        self._forked = forked
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._loop.add_reader(forked.exit_fd, self._end)

    @property
    def returncode(self) -> int | None:
        return self._forked.returncode

    def send_signal(self, number: int) -> None:
        # Never through `ForkedProgram.send_signal`: it may read and close the pipe that the loop still watches.
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """The exit code."""
        await self._ended.wait()
        return self._forked.wait()

    def _end(self) -> None:
        self._loop.remove_reader(self._forked.exit_fd)
        self._forked.poll()
        self._ended.set()


Process = asyncio.subprocess.Process | ForkedProcess


async def start_program(
    command: Sequence[str], *, environment: Mapping[str, str], limit: int = 1 << 16, cwd: Path = REPOSITORY
) -> Process:
    """Starts a program with a pipe for its stderr, forked where that is possible. `limit`: the bytes of one line."""
    if not _may_be_forked(command, environment):
        return await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=cwd, stderr=asyncio.subprocess.PIPE, limit=limit
        )
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stderr:
        forked = _forked(command, environment, cwd, stdout=1, stderr=stderr.fileno())
    stream = asyncio.StreamReader(limit)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", buffering=0)
    )
    return ForkedProcess(forked, stream)


async def run_program(
    command: Sequence[str], *, environment: Mapping[str, str], stdin: bytes
) -> tuple[int, bytes, bytes]:
    """Runs a program to its end, forked where that is possible. Returns its exit code, stdout and stderr."""
    if not _may_be_forked(command, environment):
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        out, err = await process.communicate(stdin)
        return await process.wait(), out, err
    with ExitStack() as files:
        given, out_file, err_file = (files.enter_context(os.fdopen(os.memfd_create(f"pipe-{n}"), "w+b")) for n in "ioe")
        given.write(stdin)
        given.seek(0)
        inherited = {"stdin": given.fileno(), "stdout": out_file.fileno(), "stderr": err_file.fileno()}
        forked = ForkedProcess(_forked(command, environment, Path.cwd(), **inherited), asyncio.StreamReader())
        try:
            code = await forked.wait()
        finally:
            forked.kill()
        out_file.seek(0)
        err_file.seek(0)
        return code, out_file.read(), err_file.read()


def launch(
    command: Sequence[str], *, environment: Mapping[str, str], cwd: Path, log: IO[bytes]
) -> child_process.RunningProgram:
    """Starts a program of the stack in place of `devstack.child_process.launch`, forked where that is possible."""
    if not _may_be_forked(command, environment):
        return child_process.start_process(command, environment=environment, cwd=cwd, log=log)
    return _forked(command, environment, cwd, stdout=log.fileno(), stderr=log.fileno())


def _may_be_forked(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the program is one of FORKED, and nothing differs that only an `exec` can change."""
    if not hasattr(os, "pidfd_open") or threading.current_thread() is not threading.main_thread():
        return False
    module = _module(command)
    return module is not None and module[0].startswith(FORKED) and not _needs_exec(environment)


def _module(command: Sequence[str]) -> tuple[str, bool, list[str]] | None:
    """Module, whether with -P, and arguments of `python [-P] -m MODULE ARGUMENT…`; None for other commands."""
    match list(command):
        case [sys.executable, "-m", module, *arguments]:
            return module, False, arguments
        case [sys.executable, "-P", "-m", module, *arguments]:
            return module, True, arguments
    return None


def _needs_exec(environment: Mapping[str, str]) -> bool:
    changed = {name for name, value in environment.items() if os.environ.get(name) != value}
    if "PYTHONPATH" in changed and not any((Path(each) / "sitecustomize.py").exists() for each in _path(environment)):
        changed.remove("PYTHONPATH")  # the child puts its folders in sys.path itself
    return any(name.startswith(READ_AT_START) for name in changed)


def _path(environment: Mapping[str, str]) -> list[str]:
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


def _forked(
    command: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    *,
    stdout: int,
    stderr: int,
    stdin: int | None = None,
) -> ForkedProgram:
    """Starts the program, with an empty stdin if none is given."""
    program = _module(command)
    assert program is not None
    module, safe_path, arguments = program
    request = {
        "module": module,
        "path": [*([] if safe_path else [str(cwd)]), *_path(environment)],
        "arguments": arguments,
        "environment": dict(environment),
        "cwd": str(cwd),
    }
    forked = _server().fork(request, stdout=stdout, stderr=stderr, stdin=stdin)
    assert forked is not None, "the server of forks has ended"
    return forked


@cache
def _server() -> ForkClient:
    assert _config is not None, "pytest has not configured this plugin"
    server = connect_to_forks(_config)
    atexit.register(server.close)
    return server
