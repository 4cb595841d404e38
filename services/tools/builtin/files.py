"""read_file, write_file, list_files: the task's workspace, without running a program."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Final

from services.tools.builtin.definitions import define
from services.tools.sandbox.workspace import measure
from services.tools.tool import Arguments, CallContext, RunTool, Tool, ToolAnswer, ToolFailed
from services.tools.workspace import MAX_DEPTH, Workspaces, create, entered, give_to_owner, open_to_read, split_path
from tenure.domain.tools import EffectClass

_OUTPUT_LIMIT_BYTES: Final = 64 * 1024
_MOST_ENTRIES: Final = 1000
_MIB: Final = 1024 * 1024
_PATH: Final = {"type": "string", "minLength": 1, "maxLength": 1024, "description": "relative to the workspace"}


def file_tools(workspaces: Workspaces, max_workspace_bytes: int = 512 * _MIB) -> list[Tool]:
    """The three tools over these workspaces. A workspace at its bound takes no further file."""
    files = _Files(workspaces, max_workspace_bytes)
    return [
        Tool(
            define(
                "read_file",
                EffectClass.PURE,
                f"Read a text file of the workspace. More than {_OUTPUT_LIMIT_BYTES // 1024} KiB are cut.",
                {"path": _PATH},
                required=("path",),
                output_limit_bytes=_OUTPUT_LIMIT_BYTES,
            ),
            files.in_thread(files.read),
        ),
        Tool(
            define(
                "write_file",
                EffectClass.IDEMPOTENT,
                "Write a text file of the workspace, in the place of the one that was there. Makes its directories.",
                {"path": _PATH, "content": {"type": "string"}},
                required=("path", "content"),
            ),
            files.in_thread(files.write),
        ),
        Tool(
            define(
                "list_files",
                EffectClass.PURE,
                "List the files of the workspace, or of one of its directories, with everything below.",
                {"path": {**_PATH, "minLength": 0}},
            ),
            files.in_thread(files.list),
        ),
    ]


class _Files:
    def __init__(self, workspaces: Workspaces, max_workspace_bytes: int) -> None:
        self._workspaces, self._max_workspace_bytes = workspaces, max_workspace_bytes

    def in_thread(self, work: Callable[[int, CallContext, Arguments], str]) -> RunTool:
        """`work` on the open workspace of the call, with what the system says put into words."""

        def blocking(context: CallContext, arguments: Arguments) -> ToolAnswer:
            with self._workspaces.opened(context.tenant, context.task_id) as workspace, _told(arguments):
                return ToolAnswer(work(workspace, context, arguments))

        async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
            return await asyncio.to_thread(blocking, context, arguments)

        return run

    def read(self, workspace: int, _context: CallContext, arguments: Arguments) -> str:
        directories, name = _file_path(arguments["path"])
        with entered(workspace, directories) as directory:
            descriptor = open_to_read(name, directory)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(_OUTPUT_LIMIT_BYTES + 1).decode("utf-8", errors="replace")

    def write(self, workspace: int, context: CallContext, arguments: Arguments) -> str:
        directories, name = _file_path(arguments["path"])
        content = arguments["content"].encode("utf-8", errors="replace")
        self._check_room(context, len(content))
        with entered(workspace, directories, make=True) as directory:
            # Under a name of the call's own, then renamed: nobody sees half a file, and a run again clears up after
            # the one that died.
            temporary = f".tenure-{context.call_id}"
            try:
                with os.fdopen(create(temporary, directory), "wb") as file:
                    give_to_owner(file.fileno(), workspace)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)  # on a full disk it is what is in the way
                raise
        return f"Wrote {len(content)} bytes to {arguments['path']}."

    def list(self, workspace: int, _context: CallContext, arguments: Arguments) -> str:
        path = arguments.get("path", "")
        with entered(workspace, split_path(path)) as directory, closing(_lines(directory, "")) as found:
            lines = list(islice(found, _MOST_ENTRIES + 1))
        if len(lines) > _MOST_ENTRIES:
            lines[-1] = f"[and more: only the first {_MOST_ENTRIES} are listed]"
        return "\n".join(lines) or "There are no files."

    def _check_room(self, context: CallContext, more_bytes: int) -> None:
        used = measure(self._workspaces.directory(context.tenant, context.task_id))
        if not used.complete or used.disk_bytes + more_bytes > self._max_workspace_bytes:
            raise ToolFailed("The workspace is full: remove files first.", "WORKSPACE_LIMIT")


def _file_path(path: str) -> tuple[tuple[str, ...], str]:
    parts = split_path(path)
    if not parts or path.endswith("/"):
        raise ToolFailed(f"{path!r} does not name a file.", "BAD_PATH")
    return parts[:-1], parts[-1]


def _lines(directory: int, prefix: str, depth: int = 0) -> Generator[str, None, None]:
    """One line an entry, in order; links are named and not followed."""
    for name in sorted(os.listdir(directory)):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue  # a program is removing it just now
        shown = f"{prefix}{name}"
        if stat.S_ISDIR(status.st_mode):
            yield f"{shown}/"
            if depth < MAX_DEPTH:
                with entered(directory, (name,)) as inner:
                    yield from _lines(inner, f"{shown}/", depth + 1)
        elif stat.S_ISREG(status.st_mode):
            yield f"{shown} ({status.st_size} bytes)"
        else:
            yield f"{shown} (not a regular file)"


@contextmanager
def _told(arguments: Arguments) -> Iterator[None]:
    """What the system refuses, for the model: it may try another path."""
    try:
        yield
    except OSError as error:
        # ELOOP is how O_NOFOLLOW says that a component is a link.
        path = arguments.get("path", "")
        raise ToolFailed(f"{path!r}: {error.strerror or error}.", type(error).__name__) from error
