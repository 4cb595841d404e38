"""Logs a bounded part of a server program's stderr."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

_log: Final = logging.getLogger(__name__)
_PORTION_BYTES: Final = 16 * 1024
_LONGEST_LINE: Final = 500
_LINES_PER_WINDOW: Final = 50
_WINDOW_SECONDS: Final = 60.0
_LAST_LINES: Final = 3


class StderrLog:
    """Logs up to 50 lines a minute, counts the other lines, and keeps the last lines to explain why a server ended."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._since, self._logged, self._left_out = 0.0, 0, 0
        self.ended = asyncio.Event()

    @property
    def last_lines(self) -> str:
        return " / ".join(self._last)

    async def read(self, stderr: asyncio.StreamReader) -> None:
        """Reads stderr until its end, then sets `ended`."""
        try:
            await self._read(stderr)
        finally:
            self.ended.set()

    async def _read(self, stderr: asyncio.StreamReader) -> None:
        unread = b""
        while portion := await stderr.read(_PORTION_BYTES):
            *lines, unread = (unread + portion).split(b"\n")
            if len(unread) > _PORTION_BYTES:
                lines, unread = [*lines, unread], b""
            for line in lines:
                self._add(line)
        self._add(unread)
        self._log_left_out()

    def _add(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode(errors="replace").strip()
        if not text:
            return
        self._last.append(text)
        now = asyncio.get_running_loop().time()
        if now - self._since > _WINDOW_SECONDS:
            self._log_left_out()
            self._since, self._logged = now, 0
        if self._logged < _LINES_PER_WINDOW:
            self._logged += 1
            _log.info("an MCP server wrote to stderr: %s", text, extra={"server": self._server})
        else:
            self._left_out += 1

    def _log_left_out(self) -> None:
        if self._left_out:
            extra = {"server": self._server, "lines": self._left_out}
            _log.info("left out stderr lines of an MCP server", extra=extra)
            self._left_out = 0
