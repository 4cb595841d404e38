"""What a recording gives as the script of a replay, from ledgers made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson

from tenure.client.replays import UnreadableLedger
from tenure.testing import Recording
from tenure.v1 import ledger_pb2


def recording(folder: Path, arguments: str) -> Recording:
    """The run of an agent of Pydantic AI whose model called a tool with these arguments."""
    call = {"part_kind": "tool-call", "tool_name": "refund", "args": arguments}
    entries = [ledger_pb2.Entry(sequence=number, step=4) for number in range(1, 5)]
    entries[0].body.submitted.spec.goal = "Refund"
    entries[1].body.model_attempt.attempt_number = 1
    entries[2].body.assistant_message.content_json = "[]"
    entries[3].body.control_step.result_json = json.dumps({"parts": [call]})
    path = folder / "run.jsonl"
    path.write_text("\n".join(MessageToJson(entry, indent=None) for entry in entries))
    return Recording(path)


@pytest.mark.parametrize("arguments", ['{"order": 7', "[1]", '[["order", 7]]', "NaN"])
def test_unusable_arguments_of_a_recorded_call_are_named(tmp_path: Path, arguments: str) -> None:
    """A script has an object as the arguments of a call, and this is what the model wrote."""
    with pytest.raises(UnreadableLedger, match=r'step 4: .* not a JSON object: .*model=""'):
        _ = recording(tmp_path, arguments).answers


def test_arguments_of_a_recorded_call_are_in_the_script(tmp_path: Path) -> None:
    answers = recording(tmp_path, '{"order": 7}').answers
    assert [list(answer.calls) for answer in answers[:1]] == [[("refund", {"order": 7})]]  # type: ignore[union-attr]
