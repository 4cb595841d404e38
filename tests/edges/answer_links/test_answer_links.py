"""Answer links at a replica of the ledger: sent by real webhooks, shown and answered by the gateway's pages, once."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import psycopg
import pytest

from services.checkpoint.approvals import issuing
from services.checkpoint.approvals.issuing import LinkSettings
from services.checkpoint.queries import SCHEMA
from services.checkpoint.webhooks.sending import WebhookSettings
from tenure.domain.errors import InvalidRequest, PermissionDenied, WrongState
from tenure.runtime.store.postgres import Pool, open_pool
from tenure.v1 import task_pb2
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tests.conformance.test_ledger_escalations import policy, step, steps_taken
from tests.conformance.test_ledger_waits import (
    QUEUED,
    WAITING_USER,
    approval,
    intent,
    leave_of_a_person,
    move,
    say,
    waiting,
)
from tests.conformance.webhook_client import HERE, WebhookClient
from tests.edges.answer_links.desk import HOME, PUBLIC, TOKENS, Desk, desk_settings, open_desk, sent_to, token_in
from tests.edges.notifications.test_notifications import ANN, BOB
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, answer, reserve
from tests.support.fix_mail import MakeMailServer, smtp
from tests.support.fix_webhooks import MakeReceiver, Reply

pytestmark = pytest.mark.server

EMAIL, SLACK = webhook_pb.WEBHOOK_KIND_EMAIL, webhook_pb.WEBHOOK_KIND_SLACK


async def resolution(replica: Checkpoint, task_id: str) -> Any:
    entries = [one for one in await replica.entries(task_id) if one.body.HasField("wait_resolution")]
    assert len(entries) == 1
    return entries[0]


async def test_a_link_shows_the_call_and_a_post_approves_it(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    receiver = await webhook_receiver()
    task, token = await sent_to(desk, receiver, goal="Pay the bill")
    (delivery,) = receiver.took
    assert delivery.valid == 1
    assert [one["url"] for one in delivery.data["answer_links"]] == [
        f"{PUBLIC}/a/{token}?answer=allow",
        f"{PUBLIC}/a/{token}?answer=deny",
    ]
    for _ in range(3):
        shown = await desk.show(token)
        assert shown.status == 200
    for text in ("Pay the bill", "pay", task.wait.call_digest, "webhook/hook", "&quot;a&quot;: 1"):
        assert text in shown.body
    assert await desk.unchanged(task)
    answered = await desk.answer(token, decision="allow", comment="fine")
    assert (answered.status, answered.code) == (200, "")
    now = await desk.replica.get(task.task_id)
    assert (now.state, now.reason) == (QUEUED, "WAIT_RESOLVED")
    entry = await resolution(desk.replica, task.task_id)
    said = entry.body.wait_resolution
    assert (entry.actor, said.answer, said.comment) == ("link/webhook/hook", "allow", "fine")
    assert (said.addressee, said.client_address, len(said.shown_digest)) == ("webhook/hook", HOME, 64)
    audit = "select subject, peer, method, target from ledger.audit_records where method like 'Approval%%'"
    ((subject, peer, method, target),) = await desk.replica.query(audit)
    assert (subject, peer, method) == ("link/webhook/hook", HOME, "ApprovalService/AnswerByLink")
    assert said.shown_digest in target
    assert task.task_id in target


async def test_a_second_answer_changes_nothing(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    task, token = await sent_to(desk, await webhook_receiver())
    shown = re.search(r'name="shown" value="([0-9a-f]{64})"', (await desk.show(token)).body)
    assert shown
    answers = await asyncio.gather(*(desk.post(token, shown=shown[1], decision="deny") for _ in range(2)))
    assert sorted((one.status, one.code) for one in answers) == [(200, ""), (410, "WAIT_OVER")]
    before = await desk.replica.get(task.task_id)
    again = await desk.post(token, shown=shown[1], decision="allow")
    assert (again.status, again.code) == (410, "WAIT_OVER")
    assert (await desk.show(token)).code == "WAIT_OVER"
    assert await desk.unchanged(before)
    assert (await resolution(desk.replica, task.task_id)).body.wait_resolution.answer == "deny"


async def test_a_guess_is_not_found(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    task, token = await sent_to(desk, await webhook_receiver())
    other = token[:-1] + ("A" if token[-1] != "A" else "B")
    for guess in (other, "tal_" + "a" * 12 + "_" + "A" * 43, "guess", ""):
        for refused in (await desk.show(guess), await desk.post(guess, shown="0" * 64, decision="allow")):
            assert (refused.status, refused.code) == (404, "ANSWER_LINK_NOT_FOUND")
    assert await desk.unchanged(task)


async def test_a_link_ends_after_its_life(checkpoint: MakeCheckpoint, mail_server: MakeMailServer) -> None:
    mails = await mail_server()
    async with open_desk(await checkpoint(**desk_settings(mails, seconds=1.0)), mails) as desk:
        await desk.hooks.create(kind=EMAIL, url="", email_addresses=[ANN], answer_links=True)
        task = await waiting(desk.replica, leave_of_a_person())
        token = token_in((await mails.until(1))[0].text)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (shown := await desk.show(token)).status == 200:
                await asyncio.sleep(0.25)  # within the rate of a link
        assert (shown.status, shown.code) == (410, "ANSWER_LINK_EXPIRED")
        answered = await desk.post(token, shown="0" * 64, decision="allow")
        assert (answered.status, answered.code) == (410, "ANSWER_LINK_EXPIRED")
        assert await desk.unchanged(task)


async def test_a_link_of_another_wait_answers_nothing(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    receiver = await webhook_receiver()
    task, token = await sent_to(desk, receiver)
    await say(desk.replica, task, decision="deny")
    owner = await desk.replica.claim(task.task_id)
    await owner.commit(reserve=reserve(step=2))
    facts = [answer(step=2), intent("2.0")]
    await owner.commit(*facts, transition=move(approval("2.0")))
    second = await desk.replica.get(task.task_id)
    assert second.state == WAITING_USER
    answered = await desk.answer(token, decision="allow")
    assert (answered.status, answered.code) == (410, "WAIT_OVER")
    assert await desk.unchanged(second)


async def test_answer_to_an_outdated_view_is_refused(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    task, token = await sent_to(desk, await webhook_receiver())
    for digest in ("0" * 64, "f" * 64):
        answered = await desk.post(token, shown=digest, decision="allow")
        assert (answered.status, answered.code) == (409, "WAIT_CHANGED")
    for fields in ({}, {"decision": "edit"}, {"decision": "perhaps"}, {"reply": "yes"}):
        answered = await desk.answer(token, **fields)
        assert (answered.status, answered.code) == (400, "INVALID_REQUEST")
    assert (await desk.post(token, decision="allow")).code == "INVALID_REQUEST"
    assert await desk.unchanged(task)


@pytest.mark.nightly
async def test_each_recipient_has_a_link_of_its_own(desk: Desk) -> None:
    await desk.hooks.create(kind=EMAIL, url="", email_addresses=[ANN, BOB], answer_links=True)
    task = await waiting(desk.replica)
    mails = {mail.recipients: mail for mail in await desk.mails.until(2)}
    assert set(mails) == {(ANN,), (BOB,)}
    tokens = {address: token_in(mail.text) for (address,), mail in mails.items()}
    assert len(set(tokens.values())) == 2
    assert len({mail.message["Message-ID"] for mail in mails.values()}) == 2
    assert (await desk.answer(tokens[BOB], decision="approve")).status == 200
    entry = await resolution(desk.replica, task.task_id)
    assert (entry.actor, entry.body.wait_resolution.addressee) == (f"link/{BOB}", BOB)
    assert (await desk.answer(tokens[ANN], decision="deny")).code == "WAIT_OVER"


@pytest.mark.nightly
async def test_a_recipient_that_was_refused_gets_its_link_later(desk: Desk) -> None:
    replies = {BOB: ["451 later"]}
    desk.mails.rcpt = lambda address: replies[address].pop() if replies.get(address) else ""
    await desk.hooks.create(kind=EMAIL, url="", email_addresses=[BOB, ANN], answer_links=True)
    task = await waiting(desk.replica)
    first, second = await desk.mails.until(2)
    assert (first.recipients, second.recipients) == ((ANN,), (BOB,))
    await desk.hooks.until(lambda hook: hook.delivered == 1)
    assert len(desk.mails.took) == 2
    assert (await desk.answer(token_in(second.text), decision="deny")).status == 200
    assert (await resolution(desk.replica, task.task_id)).actor == f"link/{BOB}"


@pytest.mark.nightly
async def test_a_question_is_answered_in_a_form(desk: Desk) -> None:
    await desk.hooks.create(kind=EMAIL, url="", email_addresses=[ANN], answer_links=True)
    question = task_pb2.Wait(call_id="1.0", kind=task_pb2.WAIT_KIND_QUESTION, question="Which colour?")
    task = await waiting(desk.replica, question)
    token = token_in((await desk.mails.until(1))[0].text)
    assert "Which colour?" in (await desk.show(token)).body
    assert (await desk.answer(token, reply="blue")).status == 200
    assert (await resolution(desk.replica, task.task_id)).body.wait_resolution.answer == "blue"


class TestApprovers:
    async def test_only_members_may_answer(self, desk: Desk) -> None:
        await desk.group("finance", ANN, "key/abc")
        await desk.hooks.create(kind=EMAIL, url="", email_addresses=[ANN, BOB], answer_links=True)
        task = await waiting(desk.replica, policy=task_pb2.TaskPolicy(approvers=["group:finance"]))
        assert list(task.wait.approvers) == ["group:finance"]
        mails = {mail.recipients: mail.text for mail in await desk.mails.until(2)}
        assert TOKENS.search(mails[BOB,]) is None
        with pytest.raises(PermissionDenied, match="NOT_AN_APPROVER"):
            await say(desk.replica, task, actor="key/other", decision="approve")
        assert await desk.unchanged(task)
        token = token_in(mails[ANN,])
        await desk.group("finance", BOB)
        refused = await desk.post(token, shown="0" * 64, decision="approve")
        assert (refused.status, refused.code) == (403, "NOT_AN_APPROVER")
        assert await desk.unchanged(task)
        await desk.group("finance", ANN)
        assert (await desk.answer(token, decision="approve")).status == 200

    @pytest.mark.nightly
    async def test_an_escalation_lets_a_further_group_answer(self, desk: Desk) -> None:
        await desk.group("leads", "user/lead")
        steps = policy(step(1, approver="group:leads"), step(900))
        steps.approvers.append("user/ann")
        task = await waiting(desk.replica, policy=steps)
        task = await steps_taken(desk.replica, task.task_id, 1)
        assert list(task.wait.approvers) == ["user/ann", "group:leads"]
        assert (await say(desk.replica, task, actor="user/lead", decision="approve")).state == QUEUED

    async def test_wrong_approvers_are_refused_at_submit(self, desk: Desk) -> None:
        for approvers in (["finance"], ["group:"], ["key/a"] * 21):
            with pytest.raises(InvalidRequest, match="approvers"):
                await desk.replica.create(policy=task_pb2.TaskPolicy(approvers=approvers))


@pytest.mark.nightly
async def test_a_reminder_goes_to_the_webhook_that_it_names(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    lead, other = await webhook_receiver(), await webhook_receiver()
    for name, receiver in (("lead", lead), ("other", other)):
        await desk.hooks.create(receiver, name, event_types=["task.wait_escalated"], answer_links=True)
    task = await waiting(desk.replica, policy=policy(step(1, remind_webhook="lead"), step(2), step(900)))
    reminded, both = await lead.until(2)
    (only,) = await other.until(1)
    assert both.data["sequence"] == only.data["sequence"] > reminded.data["sequence"]
    entry = next(one for one in await desk.replica.entries(task.task_id) if one.body.HasField("wait_escalated"))
    assert entry.body.wait_escalated.step.remind_webhook == "lead"
    assert (await desk.answer(token_in(reminded.text), decision="approve")).status == 200


@pytest.mark.nightly
async def test_links_need_the_public_url_and_the_wish(
    checkpoint: MakeCheckpoint, mail_server: MakeMailServer, webhook_receiver: MakeReceiver
) -> None:
    mails, receiver = await mail_server(), await webhook_receiver()
    hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(**HERE), smtp=smtp(mails)))
    with pytest.raises(WrongState, match="PUBLIC_URL_NOT_CONFIGURED"):
        await hooks.create(receiver, answer_links=True)
    await hooks.create(receiver)
    await waiting(hooks.replica)
    assert "answer_links" not in (await receiver.until(1))[0].data


async def test_links_are_sent_to_no_other_machine_in_clear_text(checkpoint: MakeCheckpoint) -> None:
    """Also where the operator accepts that others read events: who reads a link can answer."""
    links = LinkSettings(public_url=PUBLIC)
    hooks = WebhookClient(await checkpoint(webhook=WebhookSettings(allow_insecure=True), answer_link=links))
    await hooks.create(url="http://example.com/hook")
    with pytest.raises(InvalidRequest, match="https:// where answer links are sent"):
        await hooks.create(name="links", url="http://example.com/hook", answer_links=True)
    with pytest.raises(InvalidRequest, match="https:// where answer links are sent"):
        await hooks.create(name="links", url="http://example.com/hook", kind=SLACK, answer_links=True)
    await hooks.create(name="links", url="https://example.com/hook", answer_links=True)


@pytest.mark.nightly
async def test_a_late_message_about_a_wait_has_no_link(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    receiver = await webhook_receiver()
    replies = [Reply(503), Reply(503)]
    released = asyncio.Event()
    receiver.answer = lambda _: replies.pop()._replace(after=released.wait()) if replies else Reply()
    await desk.hooks.create(receiver, answer_links=True)
    task = await waiting(desk.replica)
    (first,) = await receiver.until_came(1)
    await say(desk.replica, task, decision="approve")
    released.set()
    (late,) = await receiver.until(1, lambda one: one.type == "task.waiting_user")
    assert TOKENS.search(first.text)
    assert TOKENS.search(late.text) is None


async def test_link_token_is_not_stored_or_logged(
    desk: Desk, webhook_receiver: MakeReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the endpoint repeats what it got."""
    caplog.set_level("DEBUG")
    receiver = await webhook_receiver()
    receiver.answer = lambda delivery: Reply(500, body=TOKENS.findall(delivery.text)[0].encode())
    await desk.hooks.create(receiver, answer_links=True)
    task = await waiting(desk.replica)
    came = await receiver.until_came(2)
    receiver.answer = lambda _: Reply()
    tokens = [token_in(one.text) for one in came]
    assert len(set(tokens)) == len(tokens)
    assert (await desk.answer(tokens[0], decision="approve")).status == 200
    await desk.hooks.until(lambda hook: hook.delivered >= 1)
    secrets = [token[17:] for token in tokens]  # after "tal_" and the id; a secret may have an underscore itself
    dump = await _everything(desk.replica.dsn)
    assert task.task_id in dump
    said = dump + "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert [secret for secret in secrets if secret in said] == []


async def _everything(dsn: str) -> str:
    """Every row of every table as text; bytes as their characters."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        tables = "select tablename from pg_tables where schemaname = 'ledger'"
        names = [name for (name,) in await (await postgres.execute(tables)).fetchall()]
        rows = [await (await postgres.execute(f'select * from ledger."{name}"'.encode())).fetchall() for name in names]
    return "\n".join(
        value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for table in rows
        for row in table
        for value in row
    )


@pytest.mark.nightly
async def test_old_links_are_forgotten_as_fast_as_they_are_made(
    desk: Desk, webhook_receiver: MakeReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round deletes all of them, and none that lives."""
    monkeypatch.setattr(issuing, "FORGOTTEN_AT_ONCE", 2)
    _, token = await sent_to(desk, await webhook_receiver())
    async with open_pool(desk.replica.dsn, service="test", schema=SCHEMA) as pool:
        await _add_links(pool, 5)
        duty = asyncio.create_task(issuing.OldLinks(pool).run())
        try:
            async with asyncio.timeout(issuing.FORGET_INTERVAL_SECONDS / 2):  # before the next round of any replica
                while await _links(pool) > 1:
                    await asyncio.sleep(0.05)
        finally:
            duty.cancel()
            await asyncio.gather(duty, return_exceptions=True)
    assert (await desk.show(token)).status == 200


async def _add_links(pool: Pool, count: int) -> None:
    async with pool.connection() as connection:
        await connection.execute(
            b"insert into answer_links (link_id, digest, tenant, task_id, wait_id, webhook_id, addressee, expires_at) "
            b"select lpad(n::text, 12, '0'), digest, tenant, task_id, wait_id, webhook_id, addressee, "
            b"now() - '8 days'::interval from answer_links, generate_series(1, %(count)b) n",
            {"count": count},
        )


async def _links(pool: Pool) -> int:
    async with pool.connection() as connection:
        result = await connection.execute(b"select count(*) from answer_links")
        row: Any = await result.fetchone()
    return int(row[0])
