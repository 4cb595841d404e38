"""A commit of an unreadable body is refused: an entry is never changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tests.support.fix_checkpoint import Checkpoint, entry, reserve, words


def said(content_json: str) -> ledger_pb2.NewEntry:
    message = ledger_pb2.AssistantMessage(
        attempt_number=1, content_json=content_json, usage=task_pb2.TokenUsage(output_tokens=1)
    )
    return entry(assistant_message=message)


def defined(schema_json: str) -> ledger_pb2.NewEntry:
    tool = tool_pb2.ToolDefinition(name="t", input_schema_json=schema_json)
    return entry(tools_defined=ledger_pb2.ToolsDefined(tools=[tool]))


MALFORMED = {
    "no JSON": said("{"),
    "an object": said("{}"),
    "no objects": said("[1]"),
    "a type that is not a name": said('[{"type": 1}]'),
    "words that are none": said('[{"type": "text", "text": null}]'),
    "too deep": said("[" * 100_000),
    "NaN": said('[{"type": "tool_use", "input": NaN}]'),
    "half a pair": said('[{"type": "text", "text": "\\ud83d"}]'),
    "half a pair in a name": said('[{"type": "tool_use", "input": {"\\uDE00": 1}}]'),
    "a compaction of no kind": entry(compaction=ledger_pb2.Compaction()),
    "a schema that is none": defined("{"),
    "a schema that is a list": defined("[]"),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
async def test_an_unreadable_body_is_refused_by_its_field(replica: Checkpoint, body: Any) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    before = (await replica.get(owner.task.task_id)).sequence
    with pytest.raises(InvalidRequest) as refused:
        await owner.commit(words(), body)
    assert [one.field for one in refused.value.violations] == [f"entries[1].body.{body.body.WhichOneof('body')}"]
    assert (await replica.get(owner.task.task_id)).sequence == before
    await owner.commit(said(json.dumps([{"type": "text", "text": "\U0001f600"}])))
    await owner.end()


async def test_an_answer_without_content_has_no_blocks(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(said(""))
    await owner.end()
