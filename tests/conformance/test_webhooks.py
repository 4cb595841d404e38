"""Laws of webhooks, at replicas of the ledger over a real Postgres, with a real endpoint that checks signatures."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from services.checkpoint.webhooks.settings import WebhookSettings
from tenure.domain.errors import AlreadyExists, InvalidRequest, LimitReached, NotFound, WrongState
from tenure.runtime.tenancy import as_tenant
from tenure.v1 import task_pb2
from tenure.v1 import webhook_service_pb2 as pb
from tenure.v1.webhook_service_pb2_grpc import WebhookServiceStub
from tenure.wire.webhooks import new_secret
from tests.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint
from tests.fix_webhooks import Receiver, Reply

pytestmark = pytest.mark.server

PATIENCE_SECONDS = 60.0
DEAD, PENDING = pb.WEBHOOK_DELIVERY_STATE_DEAD, pb.WEBHOOK_DELIVERY_STATE_PENDING
HERE = {
    "allowed_networks": ("127.0.0.0/8",),
    "first_retry_seconds": 0.02,
    "longest_retry_seconds": 0.1,
    "request_timeout_seconds": 30.0,
    "turn_seconds": 60.0,
}


class Hooks:
    """WebhookService at a replica."""

    def __init__(self, replica: Checkpoint) -> None:
        self.replica = replica
        self.stub: Any = WebhookServiceStub(replica.channel)

    async def call(self, method: str, webhook: str = "hook", **fields: Any) -> Any:
        request = getattr(pb, f"{method}Request")(webhook=webhook, **fields)
        return await getattr(self.stub, method)(request, timeout=TIMEOUT_SECONDS)

    async def create(self, receiver: Receiver | None = None, name: str = "hook", **fields: Any) -> pb.Webhook:
        url = receiver.url if receiver is not None else "https://example.com/"
        request = pb.CreateWebhookRequest(**{"name": name, "url": url, **fields})
        made = await self.stub.CreateWebhook(request, timeout=TIMEOUT_SECONDS)
        if receiver is not None:
            receiver.secrets = [made.secret]
        return made.webhook

    async def get(self, webhook: str = "hook") -> pb.Webhook:
        return (await self.call("GetWebhook", webhook)).webhook

    async def deliveries(self, *states: Any, webhook: str = "hook") -> list[pb.WebhookDelivery]:
        return list((await self.call("ListWebhookDeliveries", webhook, states=states, page_size=500)).deliveries)

    async def until(self, holds: Any, webhook: str = "hook") -> pb.Webhook:
        """The webhook, once it is so."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(found := await self.get(webhook)):
                await asyncio.sleep(0.02)
        return found

    async def finish(self, goal: str = "do it", **spec: Any) -> str:
        """A task that is claimed and succeeds."""
        task = await self.replica.create(goal=goal, **spec)
        await (await self.replica.claim(task.task_id)).end()
        return task.task_id

    async def counts_are_those_of_the_deliveries(self) -> None:
        rows = await self.replica.query(
            "select w.pending, w.dead, count(d.*) filter (where d.state = 'PENDING'),"
            " count(d.*) filter (where d.state = 'DEAD')"
            " from ledger.webhooks w left join ledger.webhook_deliveries d using (webhook_id) group by w.webhook_id"
        )
        assert all(row[:2] == row[2:] for row in rows), rows


@pytest.fixture
async def hooks(checkpoint) -> Hooks:
    return Hooks(await checkpoint(webhook=WebhookSettings(**HERE)))


@pytest.fixture
async def receiver(webhook_receiver) -> Receiver:
    return await webhook_receiver()


def types(deliveries, task_id=""):
    return [one.type for one in deliveries if one.task_id == (task_id or one.task_id)]


class TestDelivery:
    async def test_an_end_is_told_signed_with_the_task_in_the_contracts_names(self, hooks, receiver):
        await hooks.create(receiver)
        task_id = await hooks.finish(goal="find out")
        (told,) = await receiver.until(1)
        assert (told.type, told.valid) == ("task.succeeded", 1)
        assert told.headers["content-type"] == "application/json"
        assert told.data["task_id"] == told.data["task"]["task_id"] == task_id
        assert told.data["task"]["spec"]["goal"] == "find out"
        assert (told.data["state"], told.data["reason"]) == ("TASK_STATE_SUCCEEDED", "FINAL_ANSWER")
        found = await hooks.until(lambda hook: hook.delivered == 1)
        assert (found.pending_deliveries, found.dead_deliveries, found.problem) == (0, 0, "")
        (delivery,) = await hooks.deliveries()
        assert (delivery.delivery_id, delivery.attempts, delivery.last_status_code) == (told.webhook_id, 1, 200)

    async def test_only_what_is_wanted_is_told_and_what_was_before_is_not(self, hooks, receiver):
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

    async def test_a_request_to_end_is_no_second_arrival(self, hooks, receiver):
        await hooks.create(receiver, event_types=["task.running", "task.cancel_requested", "task.cancelled"])
        owner = await hooks.replica.claim((await hooks.replica.create()).task_id)
        await hooks.replica.cancel(owner.task.task_id)
        await owner.end()
        await receiver.until(3)
        assert types(receiver.came) == ["task.running", "task.cancel_requested", "task.cancelled"]

    async def test_an_answer_that_does_not_come_is_a_failure_and_a_redirect_is_followed_nowhere(
        self, checkpoint, receiver
    ):
        never = asyncio.Event()
        replies = [Reply(307, (("location", receiver.url),)), Reply(after=never.wait()), Reply(200)]
        receiver.answer = lambda _delivery: replies.pop(0) if replies else Reply()
        settings = WebhookSettings(**{**HERE, "request_timeout_seconds": 1.0})
        hooks = Hooks(await checkpoint(webhook=settings))
        await hooks.create(receiver)
        await hooks.finish()
        await receiver.until(1)
        assert len({one.webhook_id for one in receiver.came}) == 1
        assert len({one.text for one in receiver.came}) == 1
        assert (await hooks.until(lambda hook: hook.delivered)).last_failed_time.seconds
        (delivery,) = await hooks.deliveries()
        assert delivery.attempts >= 3


class TestOrder:
    async def test_a_tasks_deliveries_keep_their_order_whatever_fails_and_whoever_sends(self, checkpoint, receiver):
        """Three replicas; every second attempt is refused."""
        settings = WebhookSettings(**{**HERE, "max_attempts": 100})
        hooks = Hooks(await checkpoint(webhook=settings))
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

    async def test_a_task_that_keeps_failing_holds_up_only_itself(self, hooks, receiver):
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

    async def test_an_endpoint_that_never_answers_holds_up_no_other(self, hooks, webhook_receiver):
        silent, well = await webhook_receiver(), await webhook_receiver()
        never = asyncio.Event()
        silent.answer = lambda _delivery: Reply(after=never.wait())
        await hooks.create(silent, name="silent")
        await hooks.create(well, name="well")
        for _ in range(12):
            await hooks.finish()
        await well.until(12)
        assert not silent.took

    async def test_what_waits_is_bounded_and_the_feed_keeps_the_rest(self, checkpoint, receiver):
        settings = WebhookSettings(**{**HERE, "max_pending": 1, "max_attempts": 100})
        hooks = Hooks(await checkpoint(webhook=settings))
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


class TestDeadLetters:
    async def test_after_the_last_failure_it_is_a_dead_letter_and_can_be_replayed_in_order(self, checkpoint, receiver):
        settings = WebhookSettings(**{**HERE, "max_attempts": 2})
        hooks = Hooks(await checkpoint(webhook=settings))
        receiver.answer = lambda _delivery: Reply(500, body=b"out of paper")
        await hooks.create(receiver, event_types=["task.queued", "task.succeeded"])
        task_id = await hooks.finish()
        found = await hooks.until(lambda hook: hook.dead_deliveries == 2)
        assert "out of paper" in found.problem
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
        with pytest.raises(NotFound, match="no delivery"):
            await hooks.call("ReplayWebhookDeliveries", delivery_id="00000000-0000-0000-0000-000000000000")
        await hooks.counts_are_those_of_the_deliveries()

    async def test_replaying_all_keeps_each_tasks_order(self, checkpoint, receiver):
        hooks = Hooks(await checkpoint(webhook=WebhookSettings(**{**HERE, "max_attempts": 1})))
        receiver.answer = lambda _delivery: Reply(500)
        await hooks.create(receiver, event_types=["task.*"])
        task_ids = [await hooks.finish() for _ in range(4)]
        await hooks.until(lambda hook: hook.dead_deliveries == 12)
        receiver.answer = lambda _delivery: Reply()
        assert (await hooks.call("ReplayWebhookDeliveries")).replayed == 12
        await receiver.until(12)
        for task_id in task_ids:
            assert types(receiver.took, task_id) == ["task.queued", "task.running", "task.succeeded"]

    async def test_too_many_dead_letters_pause_the_webhook_and_they_can_be_discarded(self, checkpoint, receiver):
        hooks = Hooks(await checkpoint(webhook=WebhookSettings(**{**HERE, "max_attempts": 1, "max_dead": 2})))
        receiver.answer = lambda _delivery: Reply(500)
        await hooks.create(receiver)
        await hooks.finish()
        await hooks.finish()
        found = await hooks.until(lambda hook: hook.paused)
        assert (found.pause_code, found.dead_deliveries) == ("DEAD_LETTERS_FULL", 2)
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
    async def test_during_the_overlap_both_secrets_hold_and_afterwards_the_new_one_only(self, hooks, receiver):
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

    async def test_a_secret_is_shown_by_what_made_it_and_by_nothing_else(self, hooks, receiver):
        await hooks.create(receiver)
        listed = await hooks.stub.ListWebhooks(pb.ListWebhooksRequest(), timeout=TIMEOUT_SECONDS)
        assert [hook.name for hook in listed.webhooks] == ["hook"]
        secret = receiver.secrets[0].removeprefix("whsec_")
        assert secret not in str(listed) + str(await hooks.get())


class TestStops:
    async def test_gone_pauses_the_webhook_and_keeps_the_delivery(self, hooks, receiver):
        receiver.answer = lambda _delivery: Reply(410)
        await hooks.create(receiver)
        await hooks.finish()
        found = await hooks.until(lambda hook: hook.paused)
        assert (found.pause_code, found.pending_deliveries) == ("GONE", 1)
        with pytest.raises(WrongState, match="paused"):
            await hooks.call("TestWebhook")
        receiver.answer = lambda _delivery: Reply()
        assert not (await hooks.call("ResumeWebhook")).webhook.paused
        await receiver.until(1)

    async def test_what_happened_during_a_pause_is_told_afterwards(self, hooks, receiver):
        await hooks.create(receiver)
        paused = (await hooks.call("PauseWebhook", reason="moving", actor="alice")).webhook
        assert (paused.pause_code, paused.pause_reason, paused.pause_actor) == ("OPERATOR", "moving", "alice")
        task_id = await hooks.finish()
        assert (await hooks.call("PauseWebhook", reason="again")).webhook.pause_reason == "moving"
        await hooks.call("ResumeWebhook")
        assert (await receiver.until(1))[0].task_id == task_id

    async def test_an_endpoint_that_asks_for_time_is_left_alone(self, hooks, receiver):
        """Its Retry-After holds back everything that is sent there; going on by hand ends the wait."""
        receiver.answer = lambda _delivery: Reply(429, (("retry-after", "3600"),))
        await hooks.create(receiver)
        await hooks.finish()
        await hooks.until(lambda hook: hook.problem)
        other = await hooks.finish()
        found = await hooks.until(lambda hook: hook.pending_deliveries == 2 or hook.delivered)
        assert (found.delivered, len(receiver.came)) == (0, 1)
        (waits,) = [one for one in await hooks.deliveries(PENDING) if one.attempts]
        assert waits.next_attempt_time.seconds - waits.last_attempt_time.seconds >= 3599
        receiver.answer = lambda _delivery: Reply()
        await hooks.call("PauseWebhook", reason="by hand")
        await hooks.call("ResumeWebhook")
        assert (await receiver.until(1))[0].task_id == other

    async def test_changes_that_were_no_longer_kept_are_told_as_missed(self, hooks, receiver):
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
        assert missed.data["reason"] == "WEBHOOK_GAP_REASON_EXPIRED"
        assert missed.data["to_cursor"] == gap.to_cursor != gap.from_cursor
        assert gap.from_time.ToNanoseconds() < gap.to_time.ToNanoseconds()
        task_id = await hooks.finish()
        assert (await receiver.until(2))[1].task_id == task_id

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ("update ledger.change_feed set feed_id = gen_random_uuid()", pb.WEBHOOK_GAP_REASON_OTHER_FEED),
            ("update ledger.webhooks set xid = '4611686018427387904'", pb.WEBHOOK_GAP_REASON_PUT_BACK),
        ],
    )
    async def test_a_ledger_that_was_copied_or_put_back_is_told_too(self, hooks, receiver, change, reason):
        await hooks.create(receiver)
        await hooks.call("PauseWebhook", reason="moving")
        await hooks.replica.query(change)
        await hooks.call("ResumeWebhook")
        await hooks.replica.query("update ledger.webhooks set read_at = read_at - interval '1 day'")
        assert (await receiver.until(1))[0].type == "webhook.missed"
        assert [gap.reason for gap in (await hooks.get()).gaps] == [reason]
        task_id = await hooks.finish()
        assert (await receiver.until(2))[1].task_id == task_id


class TestTurns:
    async def test_a_deliverer_that_was_killed_between_sending_and_recording_repeats_it(
        self, checkpoint_process, receiver
    ):
        """It is killed at the failpoint; the next one sends the same again, with the same id."""
        short = {
            "TENURE_CHECKPOINT_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
            "TENURE_CHECKPOINT_WEBHOOK_TURN_SECONDS": "4",
            "TENURE_CHECKPOINT_WEBHOOK_REQUEST_TIMEOUT_SECONDS": "2",
        }
        doomed = await checkpoint_process(failpoints="checkpoint.after_delivery=1#kill9", environment=short)
        hooks = Hooks(doomed.replica)
        await hooks.create(receiver)
        task_id = await hooks.finish()
        await doomed.wait_until_dead()
        await checkpoint_process(dsn=doomed.replica.dsn, environment=short)
        first, second = (await receiver.until(2))[:2]
        assert (first.webhook_id, first.text, first.task_id) == (second.webhook_id, second.text, task_id)
        assert (first.valid, second.valid) == (1, 1)

    async def test_a_turn_that_another_took_over_writes_nothing_more(self, checkpoint, receiver):
        """As one that slept with an answer in its hand: the cursor, the counts and the delivery stay the other's."""
        hooks = Hooks(await checkpoint(webhook=WebhookSettings(**HERE)))
        gate = asyncio.Event()
        receiver.answer = lambda _delivery: Reply(200 if gate.is_set() else 500, after=gate.wait())
        await hooks.create(receiver)
        await hooks.finish()
        await receiver.until_came(1)
        await hooks.replica.query("update ledger.webhooks set turn = turn + 1, turn_until = now() + interval '2 s'")
        before = await hooks.get()
        gate.set()
        await receiver.until(1)
        after = await hooks.until(lambda hook: hook.delivered == 1)
        assert (before.delivered, before.pending_deliveries) == (0, 1)
        assert not after.HasField("last_failed_time")
        assert [one.webhook_id for one in receiver.came] == [receiver.came[0].webhook_id] * 2


class TestMethods:
    async def test_a_webhook_is_found_listed_tested_and_deleted(self, hooks, receiver):
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

    async def test_a_name_is_one_webhook_and_a_tenant_has_a_bounded_number(self, checkpoint):
        hooks = Hooks(await checkpoint(webhook=WebhookSettings(max_per_tenant=1)))
        secret = new_secret()
        made = await hooks.create(secret=secret)
        assert await hooks.create(secret=secret) == made
        with pytest.raises(AlreadyExists) as refused:
            await hooks.create()
        assert refused.value.metadata["webhook_id"] == made.webhook_id
        with pytest.raises(LimitReached):
            await hooks.create(name="another")

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1", "[::ffff:10.0.0.1]"]
    )
    async def test_nothing_that_is_not_public_is_reached_unless_it_is_allowed(self, checkpoint, host):
        hooks = Hooks(await checkpoint())
        with pytest.raises(InvalidRequest, match="public"):
            await hooks.create(url=f"http://{host}:8080/")

    async def test_a_name_that_leads_inside_is_refused_when_it_is_connected(self, checkpoint, receiver):
        """A number of the old kind is no address to look at, and resolves to the loopback."""
        hooks = Hooks(await checkpoint(webhook=WebhookSettings(max_attempts=1)))
        await hooks.create(url=receiver.url.replace("127.0.0.1", "2130706433"))
        await hooks.call("TestWebhook")
        found = await hooks.until(lambda hook: hook.dead_deliveries == 1)
        assert "may not reach 127.0.0.1" in found.problem
        assert receiver.came == []
