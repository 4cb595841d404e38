"""Laws of webhooks, at replicas of the ledger over a real Postgres, with a real endpoint that checks signatures."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from services.checkpoint.webhooks.sending import WebhookSettings
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound
from tenure.domain.waits import call_digest
from tenure.runtime.request_context import as_tenant
from tenure.sdk.from_wire import task_info
from tenure.sdk.json_shape import json_value
from tenure.v1 import checkpoint_service_pb2 as checkpoint_pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import duration, moment
from tenure.wire.webhook_service import new_secret
from tests.conformance.webhook_client import HERE, WebhookClient, types
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    MakeCheckpoint,
    answer,
    entry,
    reserve,
)
from tests.support.fix_webhooks import MakeReceiver, Receiver, Reply

pytestmark = pytest.mark.server


@pytest.fixture
async def hooks(checkpoint: MakeCheckpoint) -> WebhookClient:
    return WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE)))


@pytest.fixture
async def receiver(webhook_receiver: MakeReceiver) -> Receiver:
    answer: Receiver = await webhook_receiver()
    return answer


class TestDelivery:
    async def test_an_end_is_sent_signed_with_the_public_json_of_its_task(
        self, hooks: WebhookClient, receiver: Receiver
    ) -> None:
        await hooks.create(receiver)
        task_id = await hooks.finish(goal="find out")
        (webhook,) = await receiver.until(1)
        assert (webhook.type, webhook.valid) == ("task.succeeded", 1)
        assert webhook.headers["content-type"] == "application/json"
        task = await hooks.replica.get(task_id)
        assert webhook.data == {
            "task_id": task_id,
            "sequence": task.sequence,
            "state": "SUCCEEDED",
            "reason": "FINAL_ANSWER",
            "cancel_requested": False,
            "changed_at": json_value(moment(task.update_time)),
            "task": task_info(task).to_json(),
        }
        result = await hooks.until(lambda hook: hook.delivered == 1)
        assert (result.pending_deliveries, result.dead_deliveries, result.problem) == (0, 0, "")
        (delivery,) = await hooks.deliveries()
        assert (delivery.delivery_id, delivery.attempts, delivery.last_status_code) == (webhook.webhook_id, 1, 200)

    async def test_a_tool_approval_has_the_digest_for_its_answer(
        self, hooks: WebhookClient, receiver: Receiver
    ) -> None:
        """A receiver can answer by the delivery alone: the wait's id, and the digest of the call it decides on."""
        await hooks.create(receiver, event_types=["task.waiting_user"])
        owner = await hooks.replica.claim((await hooks.replica.create()).task_id)
        await owner.commit(reserve=reserve())
        tool, amount = "pay", '{"amount": 1}'
        intent = entry(
            1, tool_intent=ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="use-1.0", tool=tool, arguments_json=amount)
        )
        wait = task_pb2.Wait(
            kind=task_pb2.WAIT_KIND_TOOL_APPROVAL,
            call_id="1.0",
            options=["allow", "deny", "edit"],
            tool=tool,
            arguments_json=amount,
        )
        move = checkpoint_pb.Transition(
            to_state=task_pb2.TASK_STATE_WAITING_USER,
            reason="APPROVAL_REQUESTED",
            wait=wait,
            wait_timeout=duration(3600.0),
        )
        await owner.commit(answer(text="so far"), intent, transition=move)
        (delivery,) = await receiver.until(1)
        sent = delivery.data["task"]["wait"]
        assert (delivery.type, sent["tool"]) == ("task.waiting_user", tool)
        assert sent["call_digest"] == call_digest(tool, amount)
        said = checkpoint_pb.WaitAnswer(wait_id=sent["wait_id"], call_digest=sent["call_digest"], decision="allow")
        answered = checkpoint_pb.AppendForeignRequest(
            task_id=delivery.task_id, request_id="a-1", actor="bob", wait_answer=said
        )
        task = (await hooks.replica.stub.AppendForeign(answered, timeout=TIMEOUT_SECONDS)).task
        assert task.state == task_pb2.TASK_STATE_QUEUED

    async def test_only_subscribed_later_events_are_delivered(self, hooks: WebhookClient, receiver: Receiver) -> None:
        await hooks.finish()
        wanted = task_pb2.TaskFilter(labels={"team": "a"})
        await hooks.create(receiver, event_types=["task.*"], filter=wanted)
        await hooks.finish(labels={"team": "b"})
        with as_tenant("other"):
            await hooks.replica.create(labels={"team": "a"})
        task_id = await hooks.finish(labels={"team": "a"})
        await receiver.until(3)
        assert types(receiver.came) == ["task.queued", "task.running", "task.succeeded"]
        assert {one.task_id for one in receiver.came} == {task_id}

    async def test_cancel_request_sends_no_second_delivery(self, hooks: WebhookClient, receiver: Receiver) -> None:
        await hooks.create(receiver, event_types=["task.running", "task.cancel_requested", "task.cancelled"])
        owner = await hooks.replica.claim((await hooks.replica.create()).task_id)
        await hooks.replica.cancel(owner.task.task_id)
        await owner.end()
        await receiver.until(3)
        assert types(receiver.came) == ["task.running", "task.cancel_requested", "task.cancelled"]

    async def test_no_answer_is_a_failure_and_redirects_are_not_followed(
        self, checkpoint: MakeCheckpoint, receiver: Receiver
    ) -> None:
        never = asyncio.Event()
        replies = [Reply(307, (("location", receiver.url),)), Reply(after=never.wait()), Reply(200)]
        receiver.answer = lambda _delivery: replies.pop(0) if replies else Reply()
        settings = WebhookSettings(**{**HERE, "request_timeout_seconds": 1.0})
        hooks = WebhookClient(await checkpoint(webhook=settings))
        await hooks.create(receiver)
        await hooks.finish()
        await receiver.until(1)
        assert len({one.webhook_id for one in receiver.came}) == 1
        assert len({one.text for one in receiver.came}) == 1
        assert (await hooks.until(lambda hook: hook.delivered)).last_failed_time.seconds
        (delivery,) = await hooks.deliveries()
        assert delivery.attempts >= 3

    async def test_long_answer_of_an_endpoint_is_not_read_to_its_end(
        self, checkpoint: MakeCheckpoint, receiver: Receiver
    ) -> None:
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(**{**HERE, "max_attempts": 1})))
        receiver.answer = lambda _delivery: Reply(500, body=b"no\n\x00" * 1_000_000)
        await hooks.create(receiver)
        await hooks.finish()
        webhook = await hooks.until(lambda hook: hook.dead_deliveries == 1)
        assert webhook.problem.startswith("HTTP 500: no no no")
        assert len(webhook.problem) <= 300
        receiver.answer = lambda _delivery: Reply(200, body=b"yes" * 1_000_000)
        await hooks.finish()
        assert (await hooks.until(lambda hook: hook.delivered)).problem == ""


class TestOrder:
    async def test_a_tasks_deliveries_keep_their_order(self, checkpoint: MakeCheckpoint, receiver: Receiver) -> None:
        """Three replicas; every second attempt is refused."""
        settings = WebhookSettings(**{**HERE, "max_attempts": 100})
        hooks = WebhookClient(await checkpoint(webhook=settings))
        for _ in range(2):
            await checkpoint(dsn=hooks.replica.dsn, webhook=settings)
        receiver.answer = lambda _delivery: Reply(500 if len(receiver.came) % 2 else 200)
        await hooks.create(receiver, event_types=["task.*"])
        task_ids = await asyncio.gather(*(hooks.finish() for _ in range(12)))
        await receiver.until(36)
        for task_id in task_ids:
            assert types(receiver.took, task_id) == ["task.queued", "task.running", "task.succeeded"]
        assert len({one.webhook_id for one in receiver.took}) == len(receiver.took) == 36
        await hooks.until(lambda hook: hook.delivered == 36)
        await hooks.counts_are_those_of_the_deliveries()

    async def test_a_task_that_keeps_failing_holds_up_only_itself(
        self, hooks: WebhookClient, receiver: Receiver
    ) -> None:
        """Its second delivery waits behind its first; others go by."""
        await hooks.create(receiver, event_types=["task.queued", "task.succeeded"])
        bad: list[str] = []
        receiver.answer = lambda delivery: Reply(500 if delivery.task_id in bad or not bad else 200)
        task = await hooks.replica.create()
        bad.append(task.task_id)
        await (await hooks.replica.claim(task.task_id)).end()
        good = await hooks.finish()
        await receiver.until(2)
        assert {one.task_id for one in receiver.took} == {good}
        await hooks.until(lambda hook: hook.dead_deliveries == 2)
        assert [one for one, _ in pairwise([*types(receiver.came, bad[0]), ""])] == (
            ["task.queued"] * 10 + ["task.succeeded"] * 10
        )

    async def test_an_endpoint_that_never_answers_holds_up_no_other(
        self, hooks: WebhookClient, webhook_receiver: MakeReceiver
    ) -> None:
        silent, well = await webhook_receiver(), await webhook_receiver()
        never = asyncio.Event()
        silent.answer = lambda _delivery: Reply(after=never.wait())
        await hooks.create(silent, name="silent")
        await hooks.create(well, name="well")
        for _ in range(12):
            await hooks.finish()
        await well.until(12)
        assert not silent.took

    async def test_pending_deliveries_are_bounded(self, checkpoint: MakeCheckpoint, receiver: Receiver) -> None:
        settings = WebhookSettings(**{**HERE, "max_pending": 1, "max_attempts": 100})
        hooks = WebhookClient(await checkpoint(webhook=settings))
        healthy = asyncio.Event()
        receiver.answer = lambda _delivery: Reply(200 if healthy.is_set() else 500)
        await hooks.create(receiver)
        await hooks.finish()
        await receiver.until_came(1)
        late = await hooks.finish()
        await receiver.until_came(len(receiver.came) + 3)
        assert len(await hooks.deliveries()) == 1
        healthy.set()
        assert (await receiver.until(2))[-1].task_id == late


class TestMethods:
    async def test_a_webhook_is_found_listed_tested_and_deleted(self, hooks: WebhookClient, receiver: Receiver) -> None:
        made = await hooks.create(receiver, name="b")
        await hooks.create(name="a", event_types=["task.failed"])
        page = await hooks.stub.ListWebhooks(pb.ListWebhooksRequest(page_size=1), timeout=TIMEOUT_SECONDS)
        assert [hook.name for hook in page.webhooks] == [page.next_page_token] == ["a"]
        request = pb.ListWebhooksRequest(page_size=1, page_token=page.next_page_token)
        page = await hooks.stub.ListWebhooks(request, timeout=TIMEOUT_SECONDS)
        assert ([hook.name for hook in page.webhooks], page.next_page_token) == (["b"], "")
        sent = (await hooks.call("TestWebhook", made.webhook_id)).delivery
        (test,) = await receiver.until(1)
        assert (test.type, test.webhook_id, test.data["name"]) == ("webhook.test", sent.delivery_id, "b")
        with as_tenant("other"), pytest.raises(NotFound):
            await hooks.get("b")
        assert (await hooks.call("DeleteWebhook", "b")).deleted
        assert not (await hooks.call("DeleteWebhook", "b")).deleted
        with pytest.raises(NotFound):
            await hooks.call("ListWebhookDeliveries", made.webhook_id)

    async def test_a_name_is_one_webhook_and_a_tenant_has_a_bounded_number(self, checkpoint: MakeCheckpoint) -> None:
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(max_per_tenant=1)))
        secret = new_secret()
        made = await hooks.create(secret=secret)
        assert await hooks.create(secret=secret) == made
        with pytest.raises(AlreadyExists) as refused:
            await hooks.create()
        assert refused.value.metadata["webhook_id"] == made.webhook_id
        with pytest.raises(LimitReached):
            await hooks.create(name="another")

    async def test_only_public_or_allowed_addresses_are_reached(self, checkpoint: MakeCheckpoint) -> None:
        hooks = WebhookClient(await checkpoint())
        for host in ("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "[::ffff:10.0.0.1]"):
            with pytest.raises(InvalidRequest, match="public"):
                await hooks.create(url=f"http://{host}:8080/")

    async def test_clear_text_to_other_machines_needs_the_setting(self, checkpoint: MakeCheckpoint) -> None:
        hooks = WebhookClient(await checkpoint())
        with pytest.raises(InvalidRequest, match="TENURE_CHECKPOINT_WEBHOOK_ALLOW_INSECURE"):
            await hooks.create(url="http://hooks.example.com/")
        allowing = WebhookClient(await checkpoint(webhook=WebhookSettings(allow_insecure=True)))
        assert (await allowing.create(url="http://hooks.example.com/")).url == "http://hooks.example.com/"

    async def test_a_disguised_inside_address_is_refused_when_sent(
        self, checkpoint: MakeCheckpoint, receiver: Receiver
    ) -> None:
        """The host is a decimal number, which the resolver would lead to the loopback."""
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(max_attempts=1, allow_insecure=True)))
        await hooks.create(url=receiver.url.replace("127.0.0.1", "2130706433"))
        await hooks.call("TestWebhook")
        webhook = await hooks.until(lambda hook: hook.dead_deliveries == 1)
        assert "four decimal parts" in webhook.problem
        assert receiver.came == []
