"""Kept content that a program of the agent replaced is lost, whatever size it has now."""

from __future__ import annotations

from typing import Any

import pytest

from services.worker.interrupts import TrustGate
from services.worker.kept_content import KeptContents
from tenure.control import ResultLost
from tenure.domain.errors import InvalidRequest
from tenure.domain.texts import MAX_KEPT_BYTES, MAX_PART_BYTES, kept_as

KEPT = kept_as(b"text")


class Tools:
    """Serves a file without an end, as far as a request may ask."""

    async def read_content(self, _token: Any, _path: str, offset: int) -> bytes:
        if offset > MAX_KEPT_BYTES:
            raise InvalidRequest(violations=[("offset", "too large")])
        return bytes(MAX_PART_BYTES)


class Held:
    token = None
    task_id = "task"


async def test_a_file_that_grew_beyond_all_bounds_is_lost_content() -> None:
    tools: Any = Tools()
    held: Any = Held()
    with pytest.raises(ResultLost):
        await KeptContents(tools, TrustGate(), held).read(KEPT.path, KEPT.digest)
