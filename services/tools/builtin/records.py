"""append_record and its unsafe twin: a line in a file outside of the system.

The simplest provider there is, and an honest one: the keyed tool looks whether a line with its key is there, under a
lock, and then does nothing; the unsafe one just appends. What is in the file shows how often an effect happened.
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
    "file": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$", "description": "the file's name, without ending"},
    "line": {"type": "string", "maxLength": 65536},
    "delay_ms": {"type": "integer", "minimum": 0, "maximum": 25000, "description": "wait before the line is appended"},
}


def record_tools(directory: Path | None, threads: Executor) -> list[Tool]:
    """Both tools over `<directory>/<file>.jsonl`; without a directory they say that they are not set up."""
    return [
        Tool(_definition("append_record", EffectClass.KEYED), _run(directory, threads, keyed=True)),
        Tool(_definition("append_record_unsafe", EffectClass.UNSAFE), _run(directory, threads, keyed=False)),
    ]


def _definition(name: str, effect_class: EffectClass) -> ToolDefinition:
    sentence = "A call that is repeated adds nothing." if effect_class is EffectClass.KEYED else "Never repeat a call."
    return define(name, effect_class, f"Append a line to a record. {sentence}", _PROPERTIES, required=("file", "line"))


def _run(directory: Path | None, threads: Executor, *, keyed: bool) -> RunTool:
    async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
        if directory is None:
            raise ToolFailure("Records are not set up on this server.", "NOT_CONFIGURED")
        await asyncio.sleep(arguments.get("delay_ms", 0) / 1000)
        record = {"key": context.idempotency_key, "epoch": context.epoch, "line": arguments["line"]}
        path = directory / f"{arguments['file']}.jsonl"
        append = partial(_append, path, record, keyed=keyed)
        # From here on the line will be there, whoever wants to stop it.
        appended = await past_return(asyncio.get_running_loop().run_in_executor(threads, append))
        return ToolAnswer("Appended." if appended else "It was there already.")

    return run


def _append(path: Path, record: dict[str, object], *, keyed: bool) -> bool:
    """False when the keyed line was there. Durable when it returns."""
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", errors="replace") + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        _lock(file.fileno())
        content = file.read()
        prefix = f'{{"key": {json.dumps(record["key"])}, '.encode()
        if keyed and any(known.startswith(prefix) for known in content.splitlines()):
            return False
        torn = bool(content) and not content.endswith(b"\n")  # somebody died in the middle of a line
        _write_whole(file.fileno(), len(content), (b"\n" if torn else b"") + line)
    return True


def _write_whole(descriptor: int, size: int, line: bytes) -> None:
    """The line, durably, at the end of a file of `size` bytes; or nothing of it where there is no room for all."""
    try:
        while line:
            line = line[os.write(descriptor, line) :]
        os.fsync(descriptor)
    except OSError as error:
        os.ftruncate(descriptor, size)
        if error.errno in _NO_ROOM:
            raise ToolFailure("There is no room on the disk: nothing was appended.", "STORAGE_FULL") from error
        raise


def _lock(descriptor: int) -> None:
    """The file's lock, within a bound: its holder may be frozen. Closing the file gives it back."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ToolFailure("The record is locked by somebody else.", "LOCKED") from None
        time.sleep(_LOCK_POLL_SECONDS)
