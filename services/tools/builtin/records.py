"""The tools append_record and append_record_unsafe, which append a line to a file outside the workspace.

They are the simplest possible external effects, for demonstrations and tests. append_record is KEYED: under a lock, it
looks for a line with its idempotency key, and appends nothing when there is one. append_record_unsafe is UNSAFE and
always appends. The file shows how often an effect happened. Each tenant has its own files.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from services.tools.tool import Arguments, CallContext, RunTool, Tool, ToolAnswer, ToolFailure, define, past_return
from tenure.domain.tools import EffectClass, ToolDefinition

_LOCK_SECONDS: Final = 5.0
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_LOCK_POLL_SECONDS: Final = 0.01
_MOST_FILES: Final = 256
_AFTER_KEY: Final = b'", '
_PROPERTIES: Final = {
    "file": {
        "type": "string",
        "pattern": "^[A-Za-z0-9_-]{1,64}$",
        "description": "the name without extension",
    },
    "line": {"type": "string", "maxLength": 65536},
    "delay_ms": {
        "type": "integer",
        "minimum": 0,
        "maximum": 25000,
        "description": "time to wait before appending",
    },
}


def record_tools(directory: Path | None, threads: Executor) -> list[Tool]:
    """Returns both tools over `<directory>/<tenant>/<file>.jsonl`. Without a directory there are no such tools."""
    if directory is None:
        return []
    known = KnownKeys()
    return [
        Tool(_definition("append_record", EffectClass.KEYED), _run(directory, threads, known)),
        Tool(_definition("append_record_unsafe", EffectClass.UNSAFE), _run(directory, threads, None)),
    ]


def _definition(name: str, effect_class: EffectClass) -> ToolDefinition:
    sentence = "A repeated call adds nothing." if effect_class is EffectClass.KEYED else "Never repeat a call."
    return define(name, effect_class, f"Append a line to a record. {sentence}", _PROPERTIES, required=("file", "line"))


def _run(directory: Path, threads: Executor, known: KnownKeys | None) -> RunTool:
    async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
        await asyncio.sleep(arguments.get("delay_ms", 0) / 1000)
        record = {"key": context.idempotency_key, "epoch": context.epoch, "line": arguments["line"]}
        path = directory / context.tenant / f"{arguments['file']}.jsonl"
        append = partial(_append, path, record, known)
        # From here on the line is appended, even if the call is cancelled.
        appended = await past_return(asyncio.get_running_loop().run_in_executor(threads, append))
        return ToolAnswer("Appended." if appended else "It was there already.")

    return run


@dataclass(slots=True)
class _Read:
    """The digests of the keys of a record's file, as far as it was read: up to `offset`, the start of a line."""

    inode: int
    offset: int = 0
    keys: set[bytes] = field(default_factory=set)


class KnownKeys:
    """Remembers the keys of the files that were used last, so that an append reads only what others appended since."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, _Read] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, path: Path, file: BinaryIO, key: object) -> bool:
        """Whether the file, which the caller has locked, has a line with the key. A line that was cut off counts."""
        with self._lock:
            read = self._files.setdefault(path, _Read(0))
            self._files.move_to_end(path)
            if len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)
        status = os.fstat(file.fileno())
        if status.st_ino != read.inode or status.st_size < read.offset:  # it is another file, or was cut
            read.inode, read.offset, read.keys = status.st_ino, 0, set()
        file.seek(read.offset)
        while line := file.readline():
            start, separator, _ = line.partition(_AFTER_KEY)
            if separator:
                read.keys.add(_digest(start + separator))
            if not line.endswith(b"\n"):  # it is read again with what follows
                break
            read.offset += len(line)
        return _digest(f'{{"key": {json.dumps(key)}, '.encode()) in read.keys


def _digest(start: bytes) -> bytes:
    return hashlib.blake2b(start, digest_size=16).digest()


def _append(path: Path, record: dict[str, object], known: KnownKeys | None) -> bool:
    """Appends the record and returns true; returns false when `known` has its key. Durable on return."""
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        _lock(file.fileno())
        if known is not None and known.has(path, file, record["key"]):
            return False
        size = os.fstat(file.fileno()).st_size
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # a process died while it wrote its line
        _write_whole(file.fileno(), size, (b"\n" if torn else b"") + line)
    return True


def _write_whole(descriptor: int, size: int, line: bytes) -> None:
    """Appends the line, durably, to a file of `size` bytes. On an error, truncates the file to its old size."""
    try:
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, size)
        if error.errno in _NO_ROOM:
            raise ToolFailure("The disk of the records is full: nothing was appended.", "STORAGE_FULL") from error
        raise


def _lock(descriptor: int) -> None:
    """Takes the file's lock, waiting a bounded time because its holder may be frozen. Closing the file releases it."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ToolFailure(
                    "Another call has locked the record: nothing was appended. Try again later.", "LOCKED"
                ) from None
        time.sleep(_LOCK_POLL_SECONDS)
