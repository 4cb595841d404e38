"""The tools read_file, write_file, list_files and delete_file: the files of the task's workspace."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice
from typing import Final

from services.tools.output import OutputStore
from services.tools.tool import Arguments, CallContext, RunTool, Tool, ToolAnswer, ToolFailure, define, past_return
from services.tools.workspace.bounds import Bounds, reporting_full_disk
from services.tools.workspace.directories import (
    MAX_DEPTH,
    TEMPORARY,
    Workspaces,
    entered,
    open_to_read,
    split_path,
    write_file,
)
from services.tools.workspace.removal import empty_some, remove_some_of
from tenure.domain.images import MAX_IMAGE_BYTES, NotAnImage, begins_as_image
from tenure.domain.tools import EffectClass

_OUTPUT_LIMIT_BYTES: Final = 64 * 1024
_MAX_ENTRIES: Final = 1000
_BOUNDS: Final = Bounds()
_MIN_PART_BYTES: Final = 4  # the longest UTF-8 character
_NOTE_BYTES: Final = 200  # reserved for the note that says where the next part begins
_MAX_STEPS: Final = 200
"""The most steps of one delete_file: enough for more entries than the measurement of a workspace counts."""
_OFFSET: Final = {"type": "integer", "minimum": 0, "maximum": 2**53, "description": "in bytes; default 0"}
_LIMIT: Final = {
    "type": "integer",
    "minimum": _MIN_PART_BYTES,
    "maximum": 2**53,
    "description": "at most so many bytes",
}
_PATH: Final = {"type": "string", "minLength": 1, "maxLength": 1024, "description": "relative to the workspace"}


def file_tools(workspaces: Workspaces, bounds: Bounds = _BOUNDS) -> list[Tool]:
    """Returns the four tools over these workspaces. write_file refuses a file that would exceed `bounds`."""
    files = _Files(workspaces, bounds)
    return [
        Tool(
            define(
                "read_file",
                EffectClass.PURE,
                f"Read a text file of the workspace, at most {_OUTPUT_LIMIT_BYTES // 1024} KiB at once. "
                "Read a longer file in parts: `limit` bytes from `offset`. "
                "Shows a PNG, JPEG, GIF or WebP image, if you can see images.",
                {"path": _PATH, "offset": _OFFSET, "limit": _LIMIT},
                required=("path",),
                output_limit_bytes=_OUTPUT_LIMIT_BYTES,
            ),
            files.in_thread(files.read),
        ),
        Tool(
            define(
                "write_file",
                EffectClass.IDEMPOTENT,
                "Write a text file of the workspace. Replaces an existing file, and creates missing directories.",
                {"path": _PATH, "content": {"type": "string"}},
                required=("path", "content"),
            ),
            files.in_thread(files.write),
        ),
        Tool(
            define(
                "list_files",
                EffectClass.PURE,
                "List the files of the workspace, or of one of its directories, with all subdirectories.",
                {"path": {**_PATH, "minLength": 0}},
            ),
            files.in_thread(files.list),
        ),
        Tool(
            define(
                "delete_file",
                EffectClass.IDEMPOTENT,
                "Delete a file of the workspace, or a directory with everything in it; `.` empties the workspace. "
                "Also works when the workspace holds too much for a program to start.",
                {"path": _PATH},
                required=("path",),
            ),
            files.in_thread(files.delete),
        ),
    ]


class _Files:
    def __init__(self, workspaces: Workspaces, bounds: Bounds) -> None:
        self._workspaces, self._bounds = workspaces, bounds
        self._outputs = OutputStore(workspaces, bounds)

    def in_thread(self, work: Callable[[int, CallContext, Arguments], str | ToolAnswer]) -> RunTool:
        """Returns a tool function that runs `work` on the opened workspace, in a thread. The model reads an OSError."""

        def blocking(context: CallContext, arguments: Arguments) -> ToolAnswer:
            with (
                _reporting_os_errors(arguments),
                reporting_full_disk(),
                self._workspaces.opened(context.tenant, context.task_id) as workspace,
            ):
                answer = work(workspace, context, arguments)
                return ToolAnswer(answer) if isinstance(answer, str) else answer

        async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
            return await past_return(asyncio.to_thread(blocking, context, arguments))

        return run

    def read(self, workspace: int, context: CallContext, arguments: Arguments) -> str | ToolAnswer:
        directories, name = _file_path(arguments["path"])
        # An integer in JSON Schema may be written as 1.0 or 1e3, which Python parses as a float.
        offset, limit = int(arguments.get("offset", 0)), int(arguments.get("limit", _OUTPUT_LIMIT_BYTES))
        with entered(workspace, directories) as directory:
            descriptor = open_to_read(name, directory)
            with os.fdopen(descriptor, "rb") as file:
                size = os.fstat(descriptor).st_size
                why_not = ""
                if not offset and begins_as_image(file.peek(12)):
                    try:
                        return self._image(file.read(MAX_IMAGE_BYTES + 1), context)
                    except NotAnImage as error:
                        why_not = f"\n[not shown as an image: {error}]"
                file.seek(offset)
                part = file.read(min(limit, context.output_limit_bytes - _NOTE_BYTES))
        if offset + len(part) >= size:
            return part.decode("utf-8", errors="replace") + why_not
        part = _whole_characters(part)
        end = offset + len(part)
        note = f"[bytes {offset} to {end} of {size}; continue with offset {end}]"
        return f"{part.decode('utf-8', errors='replace')}{why_not}\n{note}"

    def _image(self, content: bytes, context: CallContext) -> ToolAnswer:
        """Returns an image with a copy of its own: the agent may write the file again. Raises NotAnImage."""
        image = self._outputs.keep_image(content, context.tenant, context.task_id, context.call_id)
        what = f"image ({image.media_type}), {len(content)} bytes, {image.width} x {image.height} pixels"
        return ToolAnswer(f"[{what}: kept in the workspace's file {image.kept.path}]", images=(image,))

    def write(self, workspace: int, context: CallContext, arguments: Arguments) -> str:
        directories, name = _file_path(arguments["path"])
        content = arguments["content"].encode("utf-8", errors="replace")
        root = self._workspaces.directory(context.tenant, context.task_id)
        self._bounds.check_room(root, len(content), _new_entries(workspace, directories, name))
        with entered(workspace, directories, make=True) as directory:
            write_file(name, content, directory, workspace, temporary=f"{TEMPORARY}{context.call_id}")
        return f"Wrote {len(content)} bytes to {arguments['path']}."

    def list(self, workspace: int, _context: CallContext, arguments: Arguments) -> str:
        path = arguments.get("path", "")
        with entered(workspace, split_path(path)) as directory, closing(_lines(directory, "")) as result:
            lines = list(islice(result, _MAX_ENTRIES + 1))
        if len(lines) > _MAX_ENTRIES:
            lines[-1] = f"[truncated: only the first {_MAX_ENTRIES} entries are listed]"
        return "\n".join(lines) or "There are no files."

    def delete(self, workspace: int, _context: CallContext, arguments: Arguments) -> str:
        """Deletes any entry, also in a workspace with too many entries to measure, in which no program may start."""
        path = arguments["path"]
        parts = split_path(path)
        with suppress(FileNotFoundError), entered(workspace, parts[:-1]) as directory:
            for _ in range(_MAX_STEPS):
                if remove_some_of(parts[-1], directory) if parts else empty_some(directory):
                    break
            else:
                raise ToolFailure(
                    f"{path!r} is not empty yet: it is very large, or being written to. Delete it again.",
                    "NOT_ALL_DELETED",
                )
        return f"Deleted {path}." if parts else "The workspace is empty."


def _new_entries(workspace: int, directories: tuple[str, ...], name: str) -> int:
    """Returns the most entries that writing the file adds: 0 if the file exists, else the file and its directories."""
    with suppress(OSError), entered(workspace, directories) as directory:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
        return 0
    return len(directories) + 1


def _file_path(path: str) -> tuple[tuple[str, ...], str]:
    parts = split_path(path)
    if not parts or path.endswith("/"):
        raise ToolFailure(f"{path!r} does not name a file.", "BAD_PATH")
    return parts[:-1], parts[-1]


def _whole_characters(part: bytes) -> bytes:
    """Returns the part without an incomplete character at its end, which the next part then has whole."""
    for back in range(1, min(4, len(part))):
        if part[-back] & 0b1100_0000 == 0b1100_0000:
            width = 2 if part[-back] < 0b1110_0000 else 3 if part[-back] < 0b1111_0000 else 4
            return part[:-back] if back < width else part
    return part


def _lines(directory: int, prefix: str, depth: int = 0) -> Generator[str, None, None]:
    """Yields one line per entry, sorted by name in each directory. Does not follow links."""
    for name in sorted(os.listdir(directory)):
        if name.startswith(TEMPORARY):
            continue
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            continue  # a program has just removed the entry
        shown = f"{prefix}{_shown(name)}"
        if stat.S_ISDIR(status.st_mode):
            yield f"{shown}/"
            if depth < MAX_DEPTH:
                yield from _lines_below(directory, name, f"{shown}/", depth + 1)
        elif stat.S_ISREG(status.st_mode):
            yield f"{shown} ({status.st_size} bytes)"
        else:
            yield f"{shown} (not a regular file)"


def _shown(name: str) -> str:
    """Returns a name in one line. A program may choose any bytes: those that are not UTF-8 cannot be requested."""
    text = os.fsencode(name).decode(errors="backslashreplace")
    escaped = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return escaped if escaped == name else f"{escaped} [escaped name]"


def _lines_below(directory: int, name: str, prefix: str, depth: int) -> Generator[str, None, None]:
    """Yields the lines of a subdirectory; none if a program has removed, replaced or closed it since it was listed."""
    with ExitStack() as stack:
        try:
            inner = stack.enter_context(entered(directory, (name,)))
        except OSError:
            return
        yield from _lines(inner, prefix, depth)


@contextmanager
def _reporting_os_errors(arguments: Arguments) -> Iterator[None]:
    """Turns an OSError into a ToolFailure for the model, which may then try another path.

    ELOOP means that a component of the path is a link: the files are opened with O_NOFOLLOW.
    """
    try:
        yield
    except OSError as error:
        path = arguments.get("path", "")
        raise ToolFailure(f"{path!r}: {error.strerror or error}.", type(error).__name__) from error
