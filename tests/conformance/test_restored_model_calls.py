"""After a restore: model calls that ledger and model runners do not know of each other, and numbers that come again."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tenure.v1 import model_service_pb2 as pb
from tests.conformance.test_models_calls import SLOW
from tests.conformance.test_models_outcomes import until
from tests.conformance.test_models_settled import of_runner
from tests.conformance.test_restored_records import serve
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint, answer, reserve
from tests.support.fix_checkpoint import Owner as LedgerOwner
from tests.support.fix_models import ModelReplica, StartModels, generate_request
from tests.support.fix_simulator import SimulatorControl
from tests.support.fix_tools import Grants, Owner
from tests.support.sweeps import first

OTHER = json.dumps({"role": "user", "content": "Say something else."})


def again(owner: Owner, step: int, reserved_epoch: int, attempt_number: int = 1, **prompt: Any) -> pb.GenerateRequest:
    """A request of an owner whose ledger was restored."""
    request = generate_request(owner, step, attempt_number, **{"messages_json": [OTHER], **prompt})
    request.reserved_epoch = reserved_epoch
    return request


@pytest.mark.parametrize("step", first([1, 2]))
async def test_an_end_of_a_lost_future_answers_no_other_request(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl, step: int
) -> None:
    """The runner's newest call is that of step 2. Either step may be reserved again, with another prompt."""
    runner = await model_runner()
    before = grants.claim()
    ends = [await runner.generate(before, number).ended() for number in (1, 2)]
    owner = grants.claim(before.task_id, epoch=20)
    call = runner.send(again(owner, step, 20))
    end = await call.ended()
    assert (call.state.joined, call.state.begun_epoch) == (False, 20)
    assert end.answer.provider_request_id not in [one.answer.provider_request_id for one in ends]
    assert len(simulator.calls()) == 3
    assert await runner.send(again(owner, step, 20)).ended() == end
    assert len(simulator.calls()) == 3


async def test_a_call_in_flight_of_a_lost_future_ends_nowhere(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    """The runner survived the restore, and makes the call of the same number anew."""
    simulator.order_fault(latency_ms=300_000, count=1)
    runner = await model_runner()
    before = grants.claim()
    await (await runner.generate(before, **SLOW).speaking()).disconnect()
    owner = grants.claim(before.task_id, epoch=20)
    assert (await runner.send(again(owner, 1, 20)).ended()).HasField("answer")
    assert (await runner.send(again(owner, 1, 20)).ended()).HasField("answer")
    await until(lambda: len(simulator.calls()) == 2)
    assert {call["ending"] for call in simulator.calls()} == {"abandoned", "complete"}


async def test_a_call_of_before_the_backup_is_joined_or_lost(
    model_runner: StartModels, grants: Grants, simulator: SimulatorControl
) -> None:
    """The runner still has the end of step 2, and no longer that of step 1."""
    runner = await model_runner()
    before = grants.claim()
    await runner.generate(before, 1).ended()
    end = await runner.generate(before, 2).ended()
    assert await runner.send(again(grants.claim(before.task_id, epoch=20), 2, 10)).ended() == end
    owner = grants.claim(before.task_id, epoch=21)
    lost = await runner.send(again(owner, 1, 10)).ended()
    assert (lost.failure.error_class, lost.failure.retryable) == ("LOST", True)
    assert (await runner.send(again(owner, 1, 21, 2)).ended()).HasField("answer")
    assert len(simulator.calls()) == 3


async def calling(ledger: Checkpoint, runner: ModelReplica, *steps: int) -> LedgerOwner:
    """An owner whose newest attempt, of step 1, is open, and whose runner has ended the calls of these steps."""
    owner = await ledger.claim((await ledger.create()).task_id, joins=True)
    await owner.commit(reserve=reserve(outlives=True))
    for step in steps:
        await runner.generate(of_runner(owner), step).ended()
    return owner


async def compared(ledger_dsn: str, models_dsn: str) -> list[tuple[str, str, int, bool]]:
    """Of each finding: kind, task, step, and whether the time of the request is known."""
    calls, _ = await serve("models", "list-calls", models_dsn)
    lines, _ = await serve("checkpoint", "compare-model-calls", ledger_dsn, calls)
    findings = [json.loads(line) for line in lines.splitlines()]
    return [(each["finding"], each["task_id"], each["step"], bool(each["sent_at"])) for each in findings]


@pytest.mark.faults
async def test_calls_that_only_one_store_knows_are_listed(
    checkpoint: MakeCheckpoint, model_runner: StartModels, models_dsn: str
) -> None:
    ledger = await checkpoint()
    keys = ledger.keys / "verifying.json"
    runner = await model_runner(checkpoint_address=ledger.address, verifying_keys_file=keys)
    same, lost, older = [await calling(ledger, runner, *steps) for steps in ((1,), (), (1, 2))]
    settled = await calling(ledger, runner)
    await settled.commit(answer())
    token, _ = ledger.sign(task_id := str(uuid.uuid4()), 10, str(uuid.uuid4()))
    await runner.generate(Owner(task_id, 10, token)).ended()
    never_sent, _ = ledger.sign(str(uuid.uuid4()), 10, str(uuid.uuid4()))
    await runner.cancel(Owner("", 10, never_sent))
    found = await compared(ledger.dsn, models_dsn)
    assert set(found) == {
        ("LOST_MODEL_CALL", lost.task.task_id, 1, False),
        ("UNKNOWN_MODEL_CALL", older.task.task_id, 2, True),
        ("LOST_MODEL_CALL", older.task.task_id, 1, False),
        ("UNKNOWN_MODEL_CALL", task_id, 1, True),
    }
    assert same.task.task_id not in {each[1] for each in found}


@pytest.mark.faults
async def test_other_lines_than_model_calls_are_refused(checkpoint: MakeCheckpoint) -> None:
    ledger = await checkpoint()
    _, err = await serve("checkpoint", "compare-model-calls", ledger.dsn, '{"task_id": "x"}\n', code=2)
    assert "not a line of `tenure serve models list-calls`" in err
    call = {"tenant": "t", "step": 1, "attempt_number": 1, "sent_at": ""}
    first, second = (json.dumps({**call, "task_id": str(uuid.UUID(int=n))}) for n in (1, 2))
    for lines in (f"{second}\n{first}\n", f"{first}\n{first}\n"):
        _, err = await serve("checkpoint", "compare-model-calls", ledger.dsn, lines, code=2)
        assert "not those of one" in err
