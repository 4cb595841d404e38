"""Keeps content that is too large for the ledger in the task's workspace, and reads it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.worker.held_claims import HeldTask
from services.worker.interrupts import TrustGate
from services.worker.tools_client import ToolsClient
from tenure.control import ResultLost
from tenure.domain.errors import NotFound, TryLater, WrongState
from tenure.domain.retry import RetryPolicy
from tenure.domain.texts import CONTENT_MISMATCH, MAX_KEPT_BYTES, MAX_PART_BYTES, KeptContent, kept_as
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability.logs import log_context
from tenure.runtime.retrying import retrying

TRIES: Final = RetryPolicy(max_attempts=12, initial_seconds=0.1, factor=2.0, cap_seconds=5.0)


class _SendAgain(TryLater):
    """The parts did not arrive as they were sent."""


@dataclass(frozen=True, slots=True)
class KeptContents:
    """The kept content of one held task."""

    tools: ToolsClient
    trust: TrustGate
    held_task: HeldTask

    async def keep(self, content: bytes) -> KeptContent:
        """Returns the reference when the content is on disk.

        Raises WrongState (WORKSPACE_LIMIT, WORKSPACE_UNREADABLE, STORAGE_FULL), TryLater after many attempts, Fenced.
        """
        kept = kept_as(content)
        await retrying(lambda: self._send(kept, content), TRIES)
        with log_context(task=self.held_task.task_id):
            await failpoint("worker.after_keep")
        return kept

    async def _send(self, kept: KeptContent, content: bytes) -> None:
        for offset in range(0, len(content), MAX_PART_BYTES):
            await self.trust.wait_open()
            part = content[offset : offset + MAX_PART_BYTES]
            try:
                await self.tools.keep_content(self.held_task.token, kept, offset, part)
            except WrongState as refusal:
                if refusal.reason != CONTENT_MISMATCH:
                    raise
                raise _SendAgain(refusal.message) from refusal

    async def read(self, path: str, digest: str) -> bytes:
        """Returns the content. Raises ResultLost when it is not there or not the same, TryLater, Fenced."""
        try:
            content = await retrying(lambda: self._receive(path), TRIES)
        except NotFound:
            raise ResultLost(path, "it is not there any more") from None
        except WrongState as refusal:
            raise ResultLost(path, refusal.message) from refusal
        if kept_as(content).digest != digest:
            raise ResultLost(path, "it is another one now")
        return content

    async def _receive(self, path: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := await self.tools.read_content(self.held_task.token, path, size):
            parts.append(part)
            size += len(part)
            if len(part) < MAX_PART_BYTES or size > MAX_KEPT_BYTES:  # a program made it larger than anything kept
                break
        return b"".join(parts)
