"""Laws of Slack and e-mail as kinds of webhooks, at a replica of the ledger, with stubs that speak their protocols."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.checkpoint.approvals.issuing import LinkSettings
from services.checkpoint.webhooks.event_writer import EVENTS_A_WRITE
from services.checkpoint.webhooks.sending import WebhookSettings
from tenure.domain import notifications
from tenure.domain.errors import AlreadyExists, WrongState
from tenure.v1 import checkpoint_service_pb2 as checkpoint_pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import duration
from tenure.wire.webhook_service import new_secret
from tests.conformance.test_ledger_sub_agents import finish, in_state, waiting
from tests.conformance.webhook_client import HERE, WebhookClient
from tests.support.fix_checkpoint import MakeCheckpoint, Owner, answer, entry, reserve
from tests.support.fix_mail import LOST, MailServer, MakeMailServer, smtp
from tests.support.http_stub import HttpStub, page
from tests.support.sweeps import first

pytestmark = pytest.mark.server

ANN, BOB = "ann@example.com", "bob@example.com"
SLACK, EMAIL = pb.WEBHOOK_KIND_SLACK, pb.WEBHOOK_KIND_EMAIL
DEAD = pb.WEBHOOK_DELIVERY_STATE_DEAD


@pytest.fixture
async def mails(mail_server: MakeMailServer) -> MailServer:
    return await mail_server()


@pytest.fixture
async def hooks(checkpoint: MakeCheckpoint, mails: MailServer) -> WebhookClient:
    return WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE), smtp=smtp(mails)))


async def wait_for_approval(hooks: WebhookClient, tool: str = "", arguments_json: str = "", **spec: Any) -> str:
    """A task whose owner asks a person, or waits for the approval of a call."""
    owner = await hooks.replica.claim((await hooks.replica.create(**spec)).task_id)
    return await ask(owner, tool, arguments_json)


async def ask(owner: Owner, tool: str = "", arguments_json: str = "") -> str:
    """The owner's task waits for a person. Returns the task's id."""
    await owner.commit(reserve=reserve())
    called: dict[str, Any] = {"tool": tool or "request_approval", "arguments_json": arguments_json or "{}"}
    intent = entry(1, tool_intent=ledger_pb2.ToolIntent(call_id="1.0", tool_use_id="use-1.0", **called))
    if tool:
        wait = task_pb2.Wait(
            kind=task_pb2.WAIT_KIND_TOOL_APPROVAL, call_id="1.0", options=["allow", "deny", "edit"], **called
        )
    else:
        wait = task_pb2.Wait(
            kind=task_pb2.WAIT_KIND_APPROVAL, call_id="1.0", question="Pay?", options=["approve", "deny"]
        )
    move = checkpoint_pb.Transition(
        to_state=task_pb2.TASK_STATE_WAITING_USER,
        reason="APPROVAL_REQUESTED",
        wait=wait,
        wait_timeout=duration(3600.0),
    )
    await owner.commit(answer(text="so far"), intent, transition=move)
    return owner.task.task_id


class TestSlack:
    async def test_a_wait_becomes_a_message_with_its_command(self, hooks: WebhookClient) -> None:
        async with HttpStub(lambda _: page("ok")) as slack:
            await hooks.create(kind=SLACK, url=slack.url("/services/T0/B0/secret"))
            task_id = await wait_for_approval(hooks, goal="Pay <!channel> & go")
            await hooks.until(lambda hook: hook.delivered == 1)
        (seen,) = slack.seen
        message = json.loads(seen.body)
        wait = (await hooks.replica.get(task_id)).wait
        assert (seen.method, seen.target, seen.headers["content-type"]) == (
            "POST",
            "/services/T0/B0/secret",
            "application/json",
        )
        assert "webhook-signature" not in seen.headers
        assert message["blocks"][0]["text"]["text"] == "Approval needed: Pay &lt;!channel&gt; &amp; go"
        assert f"tenure resume {task_id} --wait {wait.wait_id} --approve" in message["text"]

    async def test_arguments_of_a_call_stay_in_the_ledger(self, hooks: WebhookClient, mails: MailServer) -> None:
        async with HttpStub(lambda _: page("ok")) as slack:
            await hooks.create(name="chat", kind=SLACK, url=slack.url())
            await hooks.create(name="mail", kind=EMAIL, url="", email_addresses=[ANN])
            await wait_for_approval(hooks, tool="pay", arguments_json='{"iban": "DE99"}')
            await hooks.until(lambda hook: hook.delivered == 1, "chat")
        (mail,) = await mails.until(1)
        for text in (slack.seen[0].body.decode(), mail.text):
            assert "Tool: " in text
            assert "pay" in text
            assert "DE99" not in text

    @pytest.mark.parametrize("status", first(["403 Forbidden", "400 Bad Request", "404 Not Found"]))
    async def test_refused_message_is_dead_without_a_retry(self, hooks: WebhookClient, status: str) -> None:
        async with HttpStub(lambda _: page("no_service", status)) as slack:
            await hooks.create(kind=SLACK, url=slack.url())
            await hooks.call("TestWebhook")
            await hooks.until(lambda hook: hook.dead_deliveries == 1)
        (dead,) = await hooks.deliveries(DEAD)
        assert (dead.attempts, dead.last_error) == (1, f"HTTP {status[:3]}: no_service")
        await hooks.counts_are_those_of_the_deliveries()

    async def test_its_url_is_shown_without_the_secret(self, hooks: WebhookClient) -> None:
        url = "https://hooks.slack.example/services/T0/B0/secret?key=secret"
        made = await hooks.create(kind=SLACK, url=url)
        assert (made.url, made.kind) == ("https://hooks.slack.example/…", SLACK)
        assert "secret" not in str(await hooks.get())
        assert await hooks.create(kind=SLACK, url=url) == made
        with pytest.raises(AlreadyExists):
            await hooks.create(kind=SLACK, url=url + "2")


class TestEmail:
    async def test_an_end_is_sent_with_its_result_and_cost(self, hooks: WebhookClient, mails: MailServer) -> None:
        made = await hooks.create(kind=EMAIL, url="", email_addresses=[ANN, BOB])
        assert (made.url, list(made.email_addresses), made.kind) == ("", [ANN, BOB], EMAIL)
        task_id = await hooks.finish(goal="find out")
        (mail,) = await mails.until(1)
        await hooks.until(lambda hook: hook.delivered == 1)
        (delivery,) = await hooks.deliveries()
        assert mail.recipients == (ANN, BOB)
        assert mail.message["Subject"] == "[Tenure] Succeeded: find out"
        assert mail.message["Message-ID"] == f"<{delivery.delivery_id}@example.com>"
        assert "Result:\n\n> done\n" in mail.text
        assert f"Task:       {task_id}\nState:      SUCCEEDED (FINAL_ANSWER)\nCost:" in mail.text
        assert (delivery.last_status_code, list(delivery.accepted_addresses)) == (250, [ANN, BOB])

    async def test_retry_goes_to_remaining_recipients_only(self, hooks: WebhookClient, mails: MailServer) -> None:
        greylisted = [BOB]
        mails.rcpt = lambda address: "451 come again" if greylisted and address == greylisted.pop() else ""
        await hooks.create(kind=EMAIL, url="", email_addresses=[BOB, ANN])
        await hooks.call("TestWebhook")
        first, second = await mails.until(2)
        assert (first.recipients, second.recipients) == ((ANN,), (BOB,))
        assert first.content == second.content
        await hooks.until(lambda hook: hook.delivered == 1)
        assert list((await hooks.deliveries())[0].accepted_addresses) == [ANN, BOB]

    @pytest.mark.nightly
    async def test_replay_skips_recipients_that_accepted(self, hooks: WebhookClient, mails: MailServer) -> None:
        mails.rcpt = lambda address: "550 no such user" if address == BOB else ""
        await hooks.create(kind=EMAIL, url="", email_addresses=[ANN, BOB])
        await hooks.call("TestWebhook")
        await hooks.until(lambda hook: hook.dead_deliveries == 1)
        (dead,) = await hooks.deliveries(DEAD)
        assert (dead.attempts, dead.last_error, list(dead.accepted_addresses)) == (
            1,
            f"{BOB}: 550 no such user",
            [ANN],
        )
        mails.rcpt = lambda _address: ""
        assert (await hooks.call("ReplayWebhookDeliveries")).replayed == 1
        assert (await mails.until(2))[1].recipients == (BOB,)
        await hooks.until(lambda hook: hook.delivered == 1)
        await hooks.counts_are_those_of_the_deliveries()

    @pytest.mark.nightly
    async def test_a_message_of_unknown_outcome_is_repeated_unchanged(
        self, hooks: WebhookClient, mails: MailServer
    ) -> None:
        mails.data = lambda _mail: "" if mails.came else LOST
        await hooks.create(kind=EMAIL, url="", email_addresses=[ANN])
        await hooks.call("TestWebhook")
        await mails.until(1)
        first, second = mails.came
        assert first.content == second.content
        assert (await hooks.until(lambda hook: hook.delivered == 1)).dead_deliveries == 0

    @pytest.mark.nightly
    async def test_it_has_no_secret_to_rotate(self, hooks: WebhookClient) -> None:
        await hooks.create(kind=EMAIL, url="", email_addresses=[ANN])
        with pytest.raises(WrongState) as refused:
            await hooks.call("RotateWebhookSecret", secret=new_secret())
        assert refused.value.reason == "WEBHOOK_NOT_SIGNED"


class TestFewMessages:
    async def test_root_tells_the_ends_of_its_sub_agents(self, hooks: WebhookClient, mails: MailServer) -> None:
        await hooks.create(kind=EMAIL, url="", email_addresses=[ANN])
        parent = await waiting(hooks.replica, goal="the tree")
        first_agent, second_agent = parent.wait.sub_agent_task_ids
        await finish(hooks.replica, first_agent)
        await finish(hooks.replica, second_agent, state=task_pb2.TASK_STATE_FAILED, reason="MODEL_REJECTED")
        await in_state(hooks.replica, parent.task_id, task_pb2.TASK_STATE_QUEUED)
        await finish(hooks.replica, parent.task_id)
        (mail,) = await mails.until(1)
        shown = await hooks.until(lambda hook: hook.delivered == 1)
        assert shown.pending_deliveries == 0
        assert mail.message["Subject"] == "[Tenure] Succeeded: the tree"
        assert "Sub-agents: 1 FAILED, 1 SUCCEEDED" in mail.text

    async def test_sub_agent_that_asks_is_a_message(self, hooks: WebhookClient, mails: MailServer) -> None:
        await hooks.create(kind=EMAIL, url="", email_addresses=[ANN])
        parent = await waiting(hooks.replica)
        await ask(await hooks.replica.claim(parent.wait.sub_agent_task_ids[0]))
        (mail,) = await mails.until(1)
        assert mail.message["Subject"].startswith("[Tenure] Approval needed")

    async def test_changes_of_a_pause_become_one_summary(
        self, hooks: WebhookClient, mails: MailServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wait that lasts still is a message of its own. A signed webhook receives each change."""
        monkeypatch.setattr(notifications, "LATE_SECONDS", 0.0)
        await hooks.create(name="mail", kind=EMAIL, url="", email_addresses=[ANN])
        await hooks.create(name="log", url="https://example.com/")
        for name in ("mail", "log"):
            await hooks.call("PauseWebhook", name, reason="holidays")
        for number in range(EVENTS_A_WRITE + 3):
            await hooks.finish(goal=f"number {number}")
        await wait_for_approval(hooks, goal="pay")
        for name in ("mail", "log"):
            await hooks.call("ResumeWebhook", name)
        (mail,) = await mails.until(1)
        assert mail.message["Subject"] == "[Tenure] Approval needed: pay"
        shown = await hooks.until(lambda hook: hook.delivered == 1, "mail")
        assert shown.pending_deliveries == 1
        assert len(await hooks.deliveries(webhook="log")) == EVENTS_A_WRITE + 4
        await hooks.replica.query(
            "update ledger.webhook_deliveries set next_attempt_at = now() where event_type = 'webhook.summary'"
        )
        summary = (await mails.until(2))[1]
        assert summary.message["Subject"] == f"[Tenure] {EVENTS_A_WRITE + 3} earlier changes of tasks"
        assert "succeeded: number 12 (" in summary.text
        await hooks.until(lambda hook: hook.delivered == 2, "mail")
        await hooks.counts_are_those_of_the_deliveries()

    async def test_message_has_the_link_to_the_console(self, checkpoint: MakeCheckpoint) -> None:
        links = LinkSettings(public_url="https://tenure.example.com/")
        hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE), answer_link=links))
        async with HttpStub(lambda _: page("ok")) as slack:
            await hooks.create(kind=SLACK, url=slack.url())
            task_id = await hooks.finish()
            await hooks.until(lambda hook: hook.delivered == 1)
        (actions,) = [one for one in json.loads(slack.seen[0].body)["blocks"] if one["type"] == "actions"]
        assert [one["url"] for one in actions["elements"]] == [f"https://tenure.example.com/console/#/tasks/{task_id}"]


async def test_the_database_keeps_kind_target_and_secret_together(hooks: WebhookClient) -> None:
    await hooks.create(kind=EMAIL, url="", email_addresses=[ANN])
    for change in ("url = 'https://x'", "email_addresses = '{}'", "kind = 'SLACK'", r"secret = '\x00'"):
        with pytest.raises(Exception, match=r"webhook_(target|secret)_of_kind"):
            await hooks.replica.query(f"update ledger.webhooks set {change}")
