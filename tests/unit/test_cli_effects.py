"""What `tenure tools effects` asks for and shows."""

from __future__ import annotations

import click
import pytest

from tenure.cli.effects import _cells, _key
from tenure.v1 import tool_pb2


def test_a_key_is_read_from_its_options() -> None:
    assert _key(("order=7", "/a/b=x=y", "empty=")) == {"order": "7", "/a/b": "x=y", "empty": ""}
    for pairs in (("order",), ("=7",), ("order=7", "order=8")):
        with pytest.raises(click.UsageError, match="ARGUMENT=VALUE"):
            _key(pairs)


def test_a_row_says_what_is_known_of_the_effect() -> None:
    call = tool_pb2.EffectCall(
        tool="refund",
        key_json='{"/order": 7, "/day": "\\u001b[31m"}',
        task_id="01a203af-0c62-7000-8000-000000000000",
        call_id="2.0",
        call_attempt=1,
        state=tool_pb2.CALL_STATE_FINISHED,
        status=tool_pb2.OUTCOME_STATUS_TIMED_OUT,
        detail="TIMEOUT",
        fact=tool_pb2.EFFECT_FACT_UNKNOWN,
        idempotency_key="9c41-0-0",
    )
    _, *cells = (cell.plain for cell in _cells(call))
    assert cells == [
        "refund",
        'order=7 day="\\u001b[31m"',
        "01a203af-0c62",
        "2.0/1",
        "FINISHED TIMED_OUT TIMEOUT",
        "UNKNOWN",
        "-",
        "9c41-0-0",
    ]
    call.ClearField("state")
    call.ClearField("status")
    assert [cell.plain for cell in _cells(call)][5] == "DELETED TIMEOUT"
