"""Laws of webhooks that do badly: dead letters, pauses, gaps, secrets that change, deliverers that die or sleep."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from services.checkpoint.queries import SCHEMA
from services.checkpoint.watch.change_feed import ChangeCursor
from services.checkpoint.webhooks.event_writer import EventWriter, SenderLeaseKey
from services.checkpoint.webhooks.sending import WebhookSettings
from tenure.domain.errors import NotFound, WrongState
from tenure.runtime.store.postgres import open_pool
from tenure.sdk.json_shape import json_value
from tenure.v1 import task_pb2
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import moment
from tenure.wire.webhook_service import new_secret
from tests.conformance.webhook_client import HERE, WebhookClient, types
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, MakeCheckpoint, MakeCheckpointProcess
from tests.support.fix_webhooks import MakeReceiver, Receiver, Reply

pytestmark = pytest.mark.server

DEAD, PENDING = pb.WEBHOOK_DELIVERY_STATE_DEAD, pb.WEBHOOK_DELIVERY_STATE_PENDING
SHORT_TURNS = {
    "TENURE_CHECKPOINT_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
    "TENURE_CHECKPOINT_WEBHOOK_LEASE_SECONDS": "8",
    "TENURE_CHECKPOINT_WEBHOOK_REQUEST_TIMEOUT_SECONDS": "4",
}


@pytest.fixture
async def hooks(checkpoint: MakeCheckpoint) -> WebhookClient:
    return WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE)))


@pytest.fixture
async def receiver(webhook_receiver: MakeReceiver) -> Receiver:
    answer: Receiver = await webhook_receiver()
    return answer


class TestDeadLetters:
    async def test_delivery_is_dead_after_the_last_failure(
        self, checkpoint: MakeCheckpoint, receiver: Receiver
    ) -> None:
        settings = WebhookSettings(**{**HERE, "max_attempts": 2})
        hooks = WebhookClient(await checkpoint(webhook=settings))
        receiver.answer = lambda _delivery: Reply(500, body=b"out of paper")
        await hooks.create(receiver, event_types=["task.queued", "task.succeeded"])
        task_id = await hooks.finish()
        webhook = await hooks.until(lambda hook: hook.dead_deliveries == 2)
        assert "out of paper" in webhook.problem
        newest, oldest = await hooks.deliveries(DEAD)
        assert (newest.event_type, oldest.event_type) == ("task.succeeded", "task.queued")
        assert (oldest.attempts, oldest.last_status_code, oldest.last_error) == (2, 500, "HTTP 500: out of paper")
        receiver.answer = lambda _delivery: Reply()
        answer = await hooks.call("ReplayWebhookDeliveries", delivery_id=newest.delivery_id)
        assert (answer.replayed, answer.remaining) == (1, 1)
        await receiver.until(1)
        assert (await hooks.call("ReplayWebhookDeliveries")).replayed == 1
        took = await receiver.until(2)
        assert [one.webhook_id for one in took] == [newest.delivery_id, oldest.delivery_id]
        assert {one.task_id for one in took} == {task_id}
        await hooks.until(lambda hook: hook.delivered == 2)
        assert (await hooks.call("ReplayWebhookDeliveries", delivery_id=newest.delivery_id)).replayed == 0
        with pytest.raises(NotFound, match="of this webhook not found"):
            await hooks.call("ReplayWebhookDeliveries", delivery_id="00000000-0000-0000-0000-000000000000")
        await hooks.counts_are_those_of_the_deliveries()

    async def test_replaying_all_keeps_each_tasks_order(self, checkpoint: MakeCheckpoint, receiver: Receiver) -> None:
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(**{**HERE, "max_attempts": 1})))
        receiver.answer = lambda _delivery: Reply(500)
        await hooks.create(receiver, event_types=["task.*"])
        task_ids = [await hooks.finish() for _ in range(4)]
        await hooks.until(lambda hook: hook.dead_deliveries == 12)
        receiver.answer = lambda _delivery: Reply()
        assert (await hooks.call("ReplayWebhookDeliveries")).replayed == 12
        await receiver.until(12)
        for task_id in task_ids:
            assert types(receiver.took, task_id) == ["task.queued", "task.running", "task.succeeded"]

    async def test_a_replayed_delivery_precedes_its_tasks_pending_ones(
        self, checkpoint: MakeCheckpoint, receiver: Receiver
    ) -> None:
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(**{**HERE, "max_attempts": 1})))
        receiver.answer = lambda delivery: Reply(410 if delivery.type == "task.succeeded" else 500)
        await hooks.create(receiver, event_types=["task.queued", "task.succeeded"])
        await hooks.finish()
        webhook = await hooks.until(lambda hook: hook.paused)
        assert (webhook.pending_deliveries, webhook.dead_deliveries) == (1, 1)
        assert (await hooks.call("ReplayWebhookDeliveries")).replayed == 1
        receiver.answer = lambda _delivery: Reply()
        await hooks.call("ResumeWebhook")
        assert types(await receiver.until(2)) == ["task.queued", "task.succeeded"]
        await hooks.until(lambda hook: hook.delivered == 2)
        await hooks.counts_are_those_of_the_deliveries()

    @pytest.mark.faults
    async def test_too_many_dead_deliveries_pause_the_webhook(
        self, checkpoint: MakeCheckpoint, receiver: Receiver
    ) -> None:
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(**{**HERE, "max_attempts": 1, "max_dead": 2})))
        receiver.answer = lambda _delivery: Reply(500)
        await hooks.create(receiver)
        await hooks.finish()
        await hooks.finish()
        webhook = await hooks.until(lambda hook: hook.paused)
        assert (webhook.pause_code, webhook.dead_deliveries) == ("DEAD_LETTERS_FULL", 2)
        one = (await hooks.deliveries(DEAD))[0].delivery_id
        assert (await hooks.call("DiscardWebhookDeliveries", delivery_id=one)).remaining == 1
        assert (await hooks.call("DiscardWebhookDeliveries")).discarded == 1
        assert await hooks.deliveries() == []
        receiver.answer = lambda _delivery: Reply()
        await hooks.call("ResumeWebhook")
        await hooks.finish()
        await receiver.until(1)
        await hooks.counts_are_those_of_the_deliveries()


class TestSecrets:
    async def test_both_secrets_hold_during_the_overlap(self, hooks: WebhookClient, receiver: Receiver) -> None:
        await hooks.create(receiver)
        old, new = receiver.secrets[0], new_secret()
        rotated = await hooks.call("RotateWebhookSecret", secret=new)
        assert (rotated.secret, rotated.webhook.HasField("old_secret_until_time")) == (new, True)
        again = await hooks.call("RotateWebhookSecret", secret=new)
        assert again.webhook.old_secret_until_time == rotated.webhook.old_secret_until_time
        receiver.secrets = [old, new]
        await hooks.finish()
        assert (await receiver.until(1))[0].valid == 2
        await hooks.replica.query("update ledger.webhooks set old_secret_until = now()")
        assert not (await hooks.get()).HasField("old_secret_until_time")
        await hooks.finish()
        assert (await receiver.until(2))[1].valid == 1
        receiver.secrets = [old]
        await hooks.finish()
        assert (await receiver.until(3))[2].valid == 0

    async def test_secret_is_shown_once(self, hooks: WebhookClient, receiver: Receiver) -> None:
        await hooks.create(receiver)
        listed = await hooks.stub.ListWebhooks(pb.ListWebhooksRequest(), timeout=TIMEOUT_SECONDS)
        assert [hook.name for hook in listed.webhooks] == ["hook"]
        secret = receiver.secrets[0].removeprefix("whsec_")
        assert secret not in str(listed) + str(await hooks.get())


class TestStops:
    async def test_gone_pauses_the_webhook_and_keeps_the_delivery(
        self, hooks: WebhookClient, receiver: Receiver
    ) -> None:
        receiver.answer = lambda _delivery: Reply(410)
        await hooks.create(receiver)
        await hooks.finish()
        webhook = await hooks.until(lambda hook: hook.paused)
        assert (webhook.pause_code, webhook.pending_deliveries) == ("GONE", 1)
        with pytest.raises(WrongState, match="paused"):
            await hooks.call("TestWebhook")
        receiver.answer = lambda _delivery: Reply()
        assert not (await hooks.call("ResumeWebhook")).webhook.paused
        await receiver.until(1)

    async def test_events_during_a_pause_are_delivered_afterwards(
        self, hooks: WebhookClient, receiver: Receiver
    ) -> None:
        await hooks.create(receiver)
        paused = (await hooks.call("PauseWebhook", reason="moving", actor="alice")).webhook
        assert (paused.pause_code, paused.pause_reason, paused.pause_actor) == ("OPERATOR", "moving", "alice")
        task_id = await hooks.finish()
        assert (await hooks.call("PauseWebhook", reason="again")).webhook.pause_reason == "moving"
        await hooks.call("ResumeWebhook")
        assert (await receiver.until(1))[0].task_id == task_id

    async def test_the_end_of_a_pruned_task_is_sent_without_the_task(
        self, hooks: WebhookClient, receiver: Receiver
    ) -> None:
        await hooks.create(receiver)
        await hooks.call("PauseWebhook", reason="for long")
        task_id = await hooks.finish()
        await hooks.replica.query("delete from ledger.tasks where task_id = %s", task_id)
        await hooks.call("ResumeWebhook")
        (delivery,) = await receiver.until(1)
        assert (delivery.type, delivery.task_id, "task" in delivery.data) == ("task.succeeded", task_id, False)

    async def test_an_endpoint_that_asks_for_time_is_left_alone(self, hooks: WebhookClient, receiver: Receiver) -> None:
        """Its Retry-After holds back everything that is sent there; going on by hand ends the wait."""
        receiver.answer = lambda _delivery: Reply(429, (("retry-after", "3600"),))
        await hooks.create(receiver)
        await hooks.finish()
        await hooks.until(lambda hook: hook.problem)
        other = await hooks.finish()
        webhook = await hooks.until(lambda hook: hook.pending_deliveries == 2 or hook.delivered)
        assert (webhook.delivered, len(receiver.came)) == (0, 1)
        (waits,) = [one for one in await hooks.deliveries(PENDING) if one.attempts]
        assert waits.next_attempt_time.seconds - waits.last_attempt_time.seconds >= 3599
        receiver.answer = lambda _delivery: Reply()
        await hooks.call("PauseWebhook", reason="by hand")
        await hooks.call("ResumeWebhook")
        assert (await receiver.until(1))[0].task_id == other

    async def test_pruned_changes_are_sent_as_missed(self, hooks: WebhookClient, receiver: Receiver) -> None:
        await hooks.create(receiver)
        await hooks.call("PauseWebhook", reason="for long")
        await hooks.finish()
        await hooks.replica.query(
            "with gone as (delete from ledger.changes returning xid, position), last as"
            " (select xid, position from gone order by xid desc, position desc limit 1)"
            " update ledger.change_feed f set pruned_xid = l.xid, pruned_position = l.position from last l"
        )
        await hooks.replica.query("update ledger.webhooks set read_at = read_at - interval '1 day'")
        await hooks.call("ResumeWebhook")
        (missed,) = await receiver.until(1)
        (gap,) = (await hooks.get()).gaps
        assert (missed.type, gap.reason) == ("webhook.missed", pb.WEBHOOK_GAP_REASON_EXPIRED)
        times = [json_value(moment(time)) for time in (gap.from_time, gap.to_time)]
        assert missed.data == {"reason": "EXPIRED", "from_at": times[0], "to_at": times[1]}
        assert gap.to_cursor != gap.from_cursor
        assert times[0] < times[1]
        task_id = await hooks.finish()
        assert (await receiver.until(2))[1].task_id == task_id

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("update ledger.change_feed set feed_id = gen_random_uuid()", pb.WEBHOOK_GAP_REASON_OTHER_FEED),
            ("update ledger.webhooks set xid = '4611686018427387904'", pb.WEBHOOK_GAP_REASON_PUT_BACK),
        ],
    )
    async def test_restored_or_copied_ledger_sends_changes_missed(
        self, hooks: WebhookClient, receiver: Receiver, change: str, reason: Any
    ) -> None:
        await hooks.create(receiver)
        await hooks.call("PauseWebhook", reason="moving")
        await hooks.replica.query(change)
        await hooks.call("ResumeWebhook")
        await hooks.replica.query("update ledger.webhooks set read_at = read_at - interval '1 day'")
        assert (await receiver.until(1))[0].type == "webhook.missed"
        assert [gap.reason for gap in (await hooks.get()).gaps] == [reason]
        task_id = await hooks.finish()
        assert (await receiver.until(2))[1].task_id == task_id


class TestSenderLeases:
    @pytest.mark.faults
    async def test_a_sender_killed_before_the_record_repeats_a_delivery(
        self, checkpoint_process: MakeCheckpointProcess, receiver: Receiver
    ) -> None:
        """It is killed at the failpoint; the next one sends the same again, with the same id."""
        doomed = await checkpoint_process(failpoints="checkpoint.after_delivery=1#kill9", environment=SHORT_TURNS)
        hooks = WebhookClient(doomed.replica)
        await hooks.create(receiver)
        task_id = await hooks.finish()
        await doomed.wait_until_dead()
        await checkpoint_process(dsn=doomed.replica.dsn, environment=SHORT_TURNS)
        first, second = (await receiver.until(2))[:2]
        assert (first.webhook_id, first.text, first.task_id) == (second.webhook_id, second.text, task_id)
        assert (first.valid, second.valid) == (1, 1)

    async def test_superseded_sender_cannot_record(
        self, checkpoint_process: MakeCheckpointProcess, receiver: Receiver
    ) -> None:
        """It is frozen with a receipt in its hand. The other one sends the same again, and goes on."""
        sleeper = await checkpoint_process(failpoints="checkpoint.after_delivery=1#freeze", environment=SHORT_TURNS)
        hooks = WebhookClient(sleeper.replica)
        await hooks.create(receiver)
        await hooks.finish()
        await receiver.until(1)
        other = await checkpoint_process(dsn=sleeper.replica.dsn, environment=SHORT_TURNS)
        hooks = WebhookClient(other.replica)
        try:
            first, second = (await receiver.until(2))[:2]
            before = await hooks.until(lambda hook: hook.delivered == 1)
        finally:
            sleeper.process.send_signal(signal.SIGCONT)
        await WebhookClient(sleeper.replica).get()
        task_id = await hooks.finish()
        await receiver.until(1, lambda one: one.task_id == task_id)
        after = await hooks.until(lambda hook: hook.delivered == 2)
        assert first.webhook_id == second.webhook_id
        assert (before.pending_deliveries, after.pending_deliveries) == (0, 0)
        await hooks.counts_are_those_of_the_deliveries()

    async def test_sender_without_the_row_lease_cannot_write(
        self, checkpoint: MakeCheckpoint, receiver: Receiver
    ) -> None:
        """As one that slept with an answer in its hand: the cursor, the counts and the delivery stay the other's."""
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE)))
        gate = asyncio.Event()
        receiver.answer = lambda _delivery: Reply(200 if gate.is_set() else 500, after=gate.wait())
        await hooks.create(receiver)
        await hooks.finish()
        await receiver.until_came(1)
        await hooks.replica.query(
            "update ledger.webhooks set lease_number = lease_number + 1, leased_until = now() + interval '2 s'"
        )
        before = await hooks.get()
        gate.set()
        await receiver.until(1)
        after = await hooks.until(lambda hook: hook.delivered == 1)
        assert (before.delivered, before.pending_deliveries) == (0, 1)
        assert not after.HasField("last_failed_time")
        assert [one.webhook_id for one in receiver.came] == [receiver.came[0].webhook_id] * 2

    async def test_expired_row_lease_moves_no_cursor(self, hooks: WebhookClient) -> None:
        """The cursor that it read stands where another lease left it: nothing is written down twice, or left out."""
        webhook = await hooks.create()
        await hooks.call("PauseWebhook", reason="so that only this test reads")
        await hooks.finish()
        statement = "select feed_id::text, xid::text::bigint, position, lease_number from ledger.webhooks"
        ((*cursor, number),) = await hooks.replica.query(statement)
        async with open_pool(hooks.replica.dsn, schema=SCHEMA) as pool:
            stale, held = (
                SenderLeaseKey(webhook.webhook_id, "default", number - 1),
                SenderLeaseKey(webhook.webhook_id, "default", number),
            )
            wanted = task_pb2.TaskFilter()
            reader = EventWriter(pool, held, "hook", [], wanted)
            assert not await EventWriter(pool, stale, "hook", [], wanted).read_on(ChangeCursor(*cursor))
            assert await hooks.deliveries() == []
            await reader.read_on(ChangeCursor(*cursor))
            ((*moved, _),) = await hooks.replica.query(statement)
            await reader.read_on(ChangeCursor(*cursor))  # as one that did not notice that it had done so
        assert moved > cursor
        assert await hooks.replica.query(statement) == [(*moved, number)]
        assert [one.event_type for one in await hooks.deliveries()] == ["task.succeeded"]
        await hooks.counts_are_those_of_the_deliveries()
