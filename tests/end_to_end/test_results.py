"""Results that must fit a schema, as a stranger asks for them through the command."""

from __future__ import annotations

import json
from pathlib import Path

from checker.verify import examine
from tenure.cli.exit_codes import Exit
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, answers, check_whole
from tests.end_to_end.test_verify import recorded

SCHEMA = {"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]}


async def test_a_typed_result_is_corrected_and_returned(installation: Installation, tmp_path: Path) -> None:
    address, schema = installation.stack.gateway_address, tmp_path / "schema.json"
    schema.write_text('{"type": "objekt"}')
    requests = ("submit", "count", "--model", "sim-e2e-shaped", "--result-schema", str(schema))
    refused = await tenure(*requests, address=address)
    assert (refused.code, "--result-schema" in refused.err) == (Exit.REFUSED, True)
    schema.write_text(json.dumps(SCHEMA))
    task_id = (await tenure(*requests, address=address)).out.strip()
    done = await tenure("tasks", "wait", task_id, address=address)
    assert (done.code, json.loads(done.out)) == (Exit.OK, {"lines": 1})
    task, entries = await installation.client.get(task_id), await installation.entries(task_id)
    assert (task.state, task.result_json) == (task_pb2.TASK_STATE_SUCCEEDED, '{"lines": 1}')
    check_whole(entries)
    assert (answers(entries), len(installation.model_calls(task_id))) == ([1, 2, 3], 3)
    shown = (await tenure("get", task_id, address=address)).out
    assert ("must fit" in shown, '"lines": 1' in shown) == (True, True)
    watched = (await tenure("watch", task_id, address=address)).out
    assert "the answer does not fit the result schema: the answer is not valid JSON" in watched
    assert "$: 'lines' is a required property" in (await tenure("tasks", "entries", task_id, address=address)).out
    few = (*requests, "--result-corrections", "0", "--watch")
    failed = await tenure(*few, address=address)
    assert (failed.code, "RESULT_INVALID" in failed.out) == (Exit.TASK_FAILED, True)
    assert examine(await recorded(installation, task_id)).violations == ()


async def test_a_finished_answer_is_given_a_shape_by_a_fork(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-shaped", "count")
    assert (await installation.ended(task_id)).result == "There is one."
    overrides = task_pb2.ForkOverrides(result_schema_json=json.dumps(SCHEMA))
    forked = await installation.client.fork(api.ForkTaskRequest(task_id=task_id, overrides=overrides))
    done = await installation.ended(forked.task_id)
    assert (done.state, done.result_json) == (task_pb2.TASK_STATE_SUCCEEDED, '{"lines": 1}')
    entries = await installation.entries(forked.task_id)
    check_whole(entries)
    assert len(installation.model_calls(forked.task_id)) == 2
    assert examine(await recorded(installation, task_id, forked.task_id)).violations == ()
