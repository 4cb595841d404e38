"""What operators do to tasks, through the gateway, against real processes."""

from __future__ import annotations

import asyncio
import re
import signal
import uuid

import pytest

from tenure.domain.errors import WrongState
from tenure.v1 import admin_service_pb2, task_pb2
from tests.end_to_end.command import next_value, start, tenure
from tests.end_to_end.installation import Installation, answers, check_whole
from tests.support.patience import PATIENCE_SECONDS

CANCELLED, FAILED, SUCCEEDED = (
    task_pb2.TASK_STATE_CANCELLED,
    task_pb2.TASK_STATE_FAILED,
    task_pb2.TASK_STATE_SUCCEEDED,
)


async def test_a_requeued_cancelled_task_continues_where_it_stopped(
    installation: Installation,
) -> None:
    file = uuid.uuid4().hex
    task_id = await installation.submit("sim-e2e-keyed-waiting", file)
    await installation.until(task_id, "tool_outcome")
    await installation.client.cancel(task_id, "by mistake")
    stopped = await installation.ended(task_id)
    assert stopped.state == CANCELLED
    queued = (
        await installation.client.admin.RequeueTask(
            admin_service_pb2.RequeueTaskRequest(task_id=task_id, reason="it was cancelled by mistake")
        )
    ).task
    assert (queued.attempt, queued.result) == (2, "")
    ended = await installation.ended(task_id)
    assert (ended.state, ended.attempt) == (SUCCEEDED, 2)
    entries = await installation.entries(task_id)
    check_whole(entries)
    assert answers(entries) == list(range(1, 7))
    effects = installation.effects(file)
    assert len(effects) == len(set(effects))
    assert set(effects) <= {f"keyed {number}" for number in range(1, 6)}
    [request] = [entry for entry in entries if entry.body.HasField("operator_request")]
    assert (request.actor, request.attempt) == ("tenant/default", 2)
    assert request.body.operator_request.reason == "it was cancelled by mistake"


@pytest.mark.faults
async def test_an_interrupted_operation_on_many_tasks_continues(installation: Installation) -> None:
    """Ctrl-C after the first page of five; the command says how to continue, and no task is cancelled twice."""
    labels = {"of": uuid.uuid4().hex}
    made = {await installation.submit("sim-hello", labels=labels, queue="no-worker") for _ in range(7)}
    address = installation.stack.gateway_address
    cancel = ("cancel", "--label", f"of={labels['of']}", "--reason", "enough")
    unasked = await tenure(*cancel, address=address)
    assert unasked.code == 2
    assert "give --yes; --dry-run shows" in unasked.err
    shown = await tenure(*cancel, "--dry-run", address=address)
    assert " ".join(shown.out.splitlines()[-1].split()).startswith("7 QUEUED (SUBMITTED) ")
    process = await start("--json", *cancel, "--rate", "1", "--yes", address=address)
    first = {(await next_value(process))["task_id"] for _ in range(5)}
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, said = await process.communicate()
    assert process.returncode == 130
    (operation,) = re.findall(r"5 tasks cancelled; to continue: the same command with --operation (\w+)", said.decode())
    rest = await tenure("--json", *cancel, "--yes", "--operation", operation, address=address)
    assert {one["task_id"] for one in rest.values} <= made - first  # the page that was lost may have acted
    assert {one["result"] for one in rest.values} == {"DONE"}
    for task_id in made:
        entries = await installation.entries(task_id)
        assert [entry.body.WhichOneof("body") for entry in entries].count("cancel_request") == 1


@pytest.mark.faults
async def test_many_running_tasks_wait_and_continue(installation: Installation) -> None:
    """Their workers lose them, and another continues each from its last commit."""
    labels = {"of": uuid.uuid4().hex}
    made = [await installation.submit("sim-e2e-keyed-paced", uuid.uuid4().hex, labels=labels) for _ in range(2)]
    for task_id in made:
        await installation.until(task_id, "tool_outcome")
    selected = ("--label", f"of={labels['of']}", "--reason", "ticket 7", "--yes")
    address = installation.stack.gateway_address
    paused = await tenure("admin", "wait", *selected, "--for", "the provider", "--until", "1h", address=address)
    assert paused.out.splitlines()[-1] == "2 tasks put into a wait"
    for task_id in made:
        assert (await installation.in_state(task_id, "WAITING_USER")).reason == "OPERATOR_WAIT"
    continued = await tenure("admin", "continue", *selected, address=address)
    assert continued.out.splitlines()[-1] == "2 tasks continued"
    for task_id in made:
        assert (await installation.ended(task_id)).state == SUCCEEDED
        check_whole(await installation.entries(task_id))


@pytest.mark.faults
async def test_a_task_that_ran_into_a_limit_goes_on_with_more(installation: Installation) -> None:
    limits = task_pb2.Limits(max_tokens=1_000_000, max_steps=1)
    task_id = await installation.submit("sim-e2e-pure", limits=limits)
    stopped = await installation.ended(task_id)
    assert stopped.state == task_pb2.TASK_STATE_COST_EXCEEDED
    done = await tenure(
        "--json", "admin", "requeue", task_id, "--reason", "worth it", "--extra-tokens", "1000", "--extra-steps", "9",
        address=installation.stack.gateway_address,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.values[0]["budget"]["max_tokens"] == 1_001_000
    assert (await installation.ended(task_id)).state == SUCCEEDED


async def test_a_running_task_is_closed_out_with_an_operators_result(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-slow-answer")
    await installation.speaking(task_id)
    done = await tenure(
        "admin", "close-out", task_id, "--reason", "superseded", "--result", "see ticket 7",
        address=installation.stack.gateway_address,
    )  # fmt: skip
    assert (done.code, "will end as FAILED" in done.out) == (0, True)
    ended = await installation.ended(task_id)
    seen = (ended.state, ended.reason, ended.message, ended.result)
    assert seen == (FAILED, "OPERATOR_CLOSE_OUT", "superseded", "see ticket 7")
    check_whole(await installation.entries(task_id))
    with pytest.raises(WrongState):
        await installation.client.admin.CloseOutTask(
            admin_service_pb2.CloseOutTaskRequest(task_id=task_id, to_state=FAILED, reason="once more")
        )


@pytest.mark.faults
async def test_an_operators_wait_survives_a_killed_ledger(own_installation: Installation) -> None:
    """The ledger is killed after it recorded the request, before it answers; the repeat has the same request id."""
    install, file = own_installation, uuid.uuid4().hex
    checkpoint = install.stack.services["checkpoint"]
    await checkpoint.restart({"TENURE_FAILPOINTS": "checkpoint.after_foreign=1#kill9"})
    task_id = await install.submit("sim-e2e-keyed-late", file)
    await install.until(task_id, "tool_outcome")
    owner = (await install.client.get(task_id)).owner
    arguments = ("admin", "wait", task_id, "--for", "the price list", "--until", "1h", "--reason", "ticket 7")
    asked = asyncio.create_task(tenure(*arguments, address=install.stack.gateway_address))
    await install.died(checkpoint)
    await checkpoint.restart()
    done = await asked
    assert done.code == 0, done.err
    assert "--option continue" in done.out
    task = await install.in_state(task_id, "WAITING_USER")
    assert (task.reason, task.owner, task.wait.question) == ("OPERATOR_WAIT", "", "the price list")
    assert "the price list" in (await tenure("waits", address=install.stack.gateway_address)).out
    before = (await install.client.get(task_id)).sequence
    await install.client.resume(task_id, task.wait.wait_id, decision="continue")
    ended = await install.ended(task_id)
    entries = await install.entries(task_id)
    check_whole(entries)
    assert (ended.state, ended.attempt, ended.claim_count) == (SUCCEEDED, 1, 2)
    assert [one for one in entries if one.sequence > before and one.actor == owner and one.epoch < ended.epoch] == []
    assert sum(one.body.HasField("operator_request") for one in entries) == 1
    assert install.effects(file) == [f"keyed {number}" for number in range(1, 6)]


@pytest.mark.faults
async def test_a_close_out_as_succeeded_survives_a_killed_ledger(own_installation: Installation) -> None:
    """The ledger is killed after it recorded the request, before it answers; the repeat has the same request id."""
    install = own_installation
    checkpoint = install.stack.services["checkpoint"]
    await checkpoint.restart({"TENURE_FAILPOINTS": "checkpoint.after_foreign=1#kill9"})
    task_id = await install.submit("sim-e2e-slow-answer")
    await install.speaking(task_id)
    arguments = ("admin", "close-out", task_id, "--state", "succeeded", "--reason", "done by hand", "--result", "paid")
    repeated = asyncio.create_task(tenure(*arguments, address=install.stack.gateway_address))
    await install.died(checkpoint)
    await checkpoint.restart()
    done = await repeated
    assert done.code == 0, done.err
    ended = await install.ended(task_id)
    seen = (ended.state, ended.reason, ended.message, ended.result)
    assert seen == (SUCCEEDED, "OPERATOR_CLOSE_OUT", "done by hand", "paid")
    entries = await install.entries(task_id)
    check_whole(entries)
    assert sum(one.body.HasField("operator_request") for one in entries) == 1


@pytest.mark.faults
async def test_a_task_that_waits_for_its_retry_is_queued_at_once(installation: Installation) -> None:
    retry = task_pb2.RetryPolicy(max_attempts=3, jitter=task_pb2.JITTER_NONE)
    retry.initial_backoff.seconds = retry.max_backoff.seconds = 600
    task_id = await installation.submit("sim-e2e-overloaded", policy=task_pb2.TaskPolicy(retry=retry))
    await installation.in_state(task_id, "RETRY_SCHEDULED")
    queued = (
        await installation.client.admin.RequeueTask(
            admin_service_pb2.RequeueTaskRequest(task_id=task_id, reason="the provider is back")
        )
    ).task
    assert queued.attempt == 1
    await installation.until(task_id, "operator_request")
    await installation.client.cancel(task_id)
    assert (await installation.ended(task_id)).state == CANCELLED


@pytest.mark.faults
async def test_the_command_says_why_it_does_nothing(installation: Installation) -> None:
    task_id = await installation.submit("sim-hello")
    await installation.ended(task_id)
    refused = await tenure("admin", "requeue", task_id, "--reason", "again", address=installation.stack.gateway_address)
    assert refused.code != 0
    assert "a SUCCEEDED task cannot be requeued" in refused.err
    without = await tenure("admin", "requeue", task_id, address=installation.stack.gateway_address)
    assert "--reason" in without.err


async def test_a_running_task_is_transferred_to_the_named_worker(
    installation: Installation,
) -> None:
    file = uuid.uuid4().hex
    task_id = await installation.submit("sim-e2e-keyed-waiting", file)
    await installation.until(task_id, "tool_outcome")
    owner = (await installation.client.get(task_id)).owner
    [other] = [one.worker_id for one in (await installation.client.workers()).workers if one.worker_id != owner]
    await installation.client.transfer(task_id, "its host is slow", to_worker_id=other)
    ended = await installation.ended(task_id)
    entries = await installation.entries(task_id)
    check_whole(entries)
    assert (ended.state, ended.attempt, ended.claim_count) == (SUCCEEDED, 1, 2)
    opened = [entry.actor for entry in entries if entry.body.transition.to_state == task_pb2.TASK_STATE_RUNNING]
    assert opened == [owner, other]
    [lost] = [entry for entry in entries if entry.body.transition.reason == "OPERATOR_TRANSFER"]
    assert (lost.actor, lost.body.transition.message) == ("tenant/default", "its host is slow")
    assert installation.effects(file) == [f"keyed {number}" for number in range(1, 6)]
    end = lost.body.transition.lease_end
    assert (end.worker_id, end.epoch) == (owner, next(entry.epoch for entry in entries if entry.actor == owner))
    address = installation.stack.gateway_address
    shown = [(await tenure(verb, task_id, address=address)).out.replace("\n", " ") for verb in ("get", "explain")]
    assert all(f"OPERATOR_TRANSFER: {owner} (epoch " in " ".join(text.split()) for text in shown)
    (event,) = [
        each
        for each in (await tenure("--json", "tasks", "entries", task_id, address=address)).values
        if each.get("lease_end")
    ]
    assert (event["lease_end"]["worker"], event["lease_end"]["epoch"]) == (owner, end.epoch)
    with pytest.raises(WrongState, match="no worker holds it"):
        await installation.client.transfer(task_id, "again")


@pytest.mark.faults
async def test_a_drained_worker_releases_all_until_its_restart(
    own_installation: Installation,
) -> None:
    install = own_installation
    task_id = await install.submit("sim-e2e-slow-answer")
    await install.speaking(task_id)
    tired = (await install.client.get(task_id)).owner
    done = await tenure("admin", "drain", tired, "--reason", "new kernel", address=install.stack.gateway_address)
    assert (done.code, "takes no more tasks" in done.out) == (0, True), done.err
    back = await install.until(task_id, "transition", lambda entry: entry.body.transition.reason == "WORKER_DRAINED")
    assert (back.actor, back.body.transition.message) == (tired, "tenant/default drains the worker: new kernel")
    after = back.sequence
    await install.until(
        task_id,
        "transition",
        lambda e: e.sequence > after and e.body.transition.to_state == task_pb2.TASK_STATE_RUNNING,
    )
    assert (await install.client.get(task_id)).owner != tired
    later = [await install.submit("sim-hello") for _ in range(4)]
    for each in later:
        assert (await install.ended(each)).state == SUCCEEDED
        assert tired not in [entry.actor for entry in await install.entries(each)]
    await install.client.cancel(task_id)
    await install.ended(task_id)
    check_whole(await install.entries(task_id))
    workers = {one.worker_id: one for one in (await install.client.workers()).workers}
    assert (workers[tired].draining, workers[tired].claim_count) == (True, 0)
    await install.stack.services[tired].restart()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(one.draining for one in (await install.client.workers()).workers):
            await asyncio.sleep(0.1)


async def test_a_running_task_is_explained_by_owner_lease_and_calls(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-slow-tool", uuid.uuid4().hex)
    await installation.until(task_id, "tool_intent")
    task = await installation.client.get(task_id)
    text = "\n".join((await installation.client.explain(task_id)).lines)
    assert f"RUNNING on {task.owner}" in text
    assert "its lease expires in" in text
    assert "1.0 append_record" in text
    held = await tenure("--json", "admin", "aging", "--idle", "0s", address=installation.stack.gateway_address)
    [mine] = [one for one in held.values if one["task_id"] == task_id]
    assert mine["remaining_seconds"] > 0
    await installation.client.cancel(task_id)
    await installation.ended(task_id)


@pytest.mark.faults
async def test_the_command_takes_a_task_from_its_worker(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-slow-answer")
    await installation.speaking(task_id)
    arguments = ("--json", "admin", "transfer", task_id, "--reason", "its host is slow")
    done = await tenure(*arguments, address=installation.stack.gateway_address)
    assert done.code == 0, done.err
    moved = await installation.until(task_id, "transition", lambda e: e.body.transition.reason == "OPERATOR_TRANSFER")
    assert moved.body.transition.message == "its host is slow"
    await installation.client.cancel(task_id)
    assert (await installation.ended(task_id)).state == CANCELLED


async def test_an_operator_prunes_an_ended_task_and_says_why(installation: Installation) -> None:
    address = installation.stack.gateway_address
    task_id = await installation.submit("sim-hello")
    await installation.ended(task_id)
    why = ("--reason", "its owner asked for it")
    response = await tenure("admin", "prune", task_id, *why, "--dry-run", address=address)
    assert (response.code, "would be pruned" in response.out) == (0, True)
    response = await tenure("--json", "admin", "prune", "--older-than", "10d", *why, address=address)
    assert (response.code, response.values) == (0, [{"task_ids": [], "more": False}])
    response = await tenure("--json", "admin", "prune", task_id, *why, address=address)
    assert response.values == [{"task_ids": [task_id], "more": False}]
    response = await tenure("get", task_id, address=address)
    assert (response.code, "by tenant/default: its owner asked for it" in response.err) == (3, True)
