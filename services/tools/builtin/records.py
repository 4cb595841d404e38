"""The tools append_record and append_record_unsafe, which append a line to a file outside the workspace.

They are the simplest possible external effects, for demonstrations and tests. append_record is KEYED: under a lock, it
looks for a line with its idempotency key, and appends nothing when there is one. append_record_unsafe is UNSAFE and
always appends. The file shows how often an effect happened.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import time
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final

from services.tools.tool import Arguments, CallContext, RunTool, Tool, ToolAnswer, ToolFailure, define, past_return
from tenure.domain.tools import EffectClass, ToolDefinition

_LOCK_SECONDS: Final = 5.0
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_LOCK_POLL_SECONDS: Final = 0.01
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
    """Returns both tools over `<directory>/<file>.jsonl`. Without a directory, each call fails with NOT_CONFIGURED."""
    return [
        Tool(_definition("append_record", EffectClass.KEYED), _run(directory, threads, keyed=True)),
        Tool(_definition("append_record_unsafe", EffectClass.UNSAFE), _run(directory, threads, keyed=False)),
    ]


def _definition(name: str, effect_class: EffectClass) -> ToolDefinition:
    sentence = "A repeated call adds nothing." if effect_class is EffectClass.KEYED else "Never repeat a call."
    return define(name, effect_class, f"Append a line to a record. {sentence}", _PROPERTIES, required=("file", "line"))


def _run(directory: Path | None, threads: Executor, *, keyed: bool) -> RunTool:
    async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
        if directory is None:
            raise ToolFailure(
                "Records are not configured on this server: it has no records directory.", "NOT_CONFIGURED"
            )
        await asyncio.sleep(arguments.get("delay_ms", 0) / 1000)
        record = {"key": context.idempotency_key, "epoch": context.epoch, "line": arguments["line"]}
        path = directory / f"{arguments['file']}.jsonl"
        append = partial(_append, path, record, keyed=keyed)
        # From here on the line is appended, even if the call is cancelled.
        appended = await past_return(asyncio.get_running_loop().run_in_executor(threads, append))
        return ToolAnswer("Appended." if appended else "It was there already.")

    return run


def _append(path: Path, record: dict[str, object], *, keyed: bool) -> bool:
    """Appends the record and returns true; returns false when a line with its key exists. Durable on return."""
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        _lock(file.fileno())
        content = file.read()
        prefix = f'{{"key": {json.dumps(record["key"])}, '.encode()
        if keyed and any(known.startswith(prefix) for known in content.splitlines()):
            return False
        torn = bool(content) and not content.endswith(b"\n")  # a process died while it wrote its line
        _write_whole(file.fileno(), len(content), (b"\n" if torn else b"") + line)
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
