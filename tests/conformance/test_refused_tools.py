"""Tools whose definitions the model provider refuses: left out of the task, by every owner alike."""

from __future__ import annotations

import pytest

from tenure.domain import entries as facts
from tenure.domain.retry import FailureClass
from tenure.domain.states import Reason, TaskState
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelRequest
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_worker import WorkerBench
from tests.support.hostile_tools import GOOD, SCHEMAS
from tests.support.model_clients import model_client

REFUSED = "tools.1.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12"


@pytest.mark.faults
async def test_refused_tool_is_left_out_also_by_the_next_owner(bench: WorkerBench) -> None:
    bench.simulator.order_fault(status=400, message=REFUSED, count=1, model="sim-worker-unsafe")
    await bench.start_worker(failpoints="worker.after_failure=1#kill9")
    task_id = await bench.submit("sim-worker-unsafe")
    await bench.reached(task_id, facts.ModelFailure)
    await bench.start_worker()
    await bench.ended(task_id)

    moves, failures = await bench.transitions(task_id), await bench.bodies(task_id, facts.ModelFailure)
    (defined,) = await bench.bodies(task_id, facts.ToolsDefined)
    attempts = await bench.bodies(task_id, facts.ModelAttempt)
    refused = defined.tools[1].name
    assert moves[-1] == (TaskState.SUCCEEDED, Reason.FINAL_ANSWER)
    assert [(failure.error_class, failure.refused_tools) for failure in failures] == [("TOOL_REFUSED", (refused,))]
    assert f"the provider refuses the definition of {refused}: tools.1.custom" in failures[0].message
    assert failures[0].usage.total == 0
    assert [attempt.attempt_number for attempt in attempts] == [1, 2, 1]
    assert attempts[1].input_tokens < attempts[0].input_tokens  # the request has no such tool


@pytest.mark.faults
async def test_a_task_without_any_tool_left_ends(bench: WorkerBench) -> None:
    message = REFUSED.replace("tools.1", "tools.0")
    bench.simulator.order_fault(status=400, message=message, count=1000, model="sim-worker-cut")
    await bench.start_worker()
    task_id = await bench.submit("sim-worker-cut", tools=("read_file", "write_file", "list_files"))
    task = await bench.ended(task_id)

    failures = await bench.bodies(task_id, facts.ModelFailure)
    assert (await bench.transitions(task_id))[-1] == (TaskState.FAILED, Reason.MODEL_REJECTED)
    assert sorted(name for failure in failures for name in failure.refused_tools) == [
        "list_files",
        "read_file",
        "write_file",
    ]
    assert len(failures) == 3
    assert failures[-1].refused_tools[0] in task.message


@pytest.mark.parametrize("model", ["sim-hello", "openai/sim-hello"])
@pytest.mark.parametrize("name", ["bad_regex", "top_any", "top_one", "no_items"])
async def test_a_refusal_of_either_provider_names_the_tool(simulator: SimulatorControl, model: str, name: str) -> None:
    """`no_items` is refused by OpenAI only."""
    tools = [
        {"name": tool, "description": "d", "input_schema": schema}
        for tool, schema in (("good", GOOD["inputSchema"]), ("bad", SCHEMAS[name]))
    ]
    request = ModelRequest(model, [{"role": "user", "content": "go"}], 100, tools=tools)
    async with model_client(simulator.url) as client:
        refused: tuple[str, tuple[str, ...], int] | None = None
        try:
            await client.answer(request, ModelCall(lambda _block, _text: None, lambda: None))
        except ModelCallFailed as failure:
            refused = failure.error_class, failure.refused_tools, failure.usage.total
    is_accepted = (name, model) == ("no_items", "sim-hello")
    assert refused == (None if is_accepted else (FailureClass.TOOL_REFUSED, ("bad",), 0))
