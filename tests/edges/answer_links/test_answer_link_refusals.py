"""Answers by link in the audit log, above all refused ones: whose link it was, what for, and from where."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.runtime.security.process_security import Security
from tests.edges.answer_links.desk import HOME, Desk, desk_settings, open_desk, sent_to
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_mail import MakeMailServer
from tests.support.fix_webhooks import MakeReceiver
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server
METHOD = "ApprovalService/AnswerByLink"
RECORDS = "select tenant, subject, peer, reason, target from ledger.audit_records where decision = 'DENIED'"


async def refused(at: Desk) -> tuple[Any, ...]:
    """The one record of a refusal, waited for: refusals are written every second."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (rows := await at.replica.query(f"{RECORDS} and method = '{METHOD}'")):
            await asyncio.sleep(0.1)
    (row,) = rows
    return tuple(row)


async def test_an_answer_to_another_view_is_recorded(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    _, token = await sent_to(desk, await webhook_receiver())
    assert (await desk.post(token, shown="f" * 64, decision="allow")).code == "WAIT_CHANGED"
    _, subject, _, reason, target = await refused(desk)
    assert (subject, reason) == ("link/webhook/hook", "WAIT_CHANGED")
    assert f"shown_digest={'f' * 64}" in target


async def test_refused_guess_is_recorded_without_a_name(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    """Who has the id of a link, and not its secret, is not its addressee."""
    task, token = await sent_to(desk, await webhook_receiver())
    guess = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert (await desk.post(guess, shown="0" * 64, decision="allow")).code == "ANSWER_LINK_NOT_FOUND"
    tenant, subject, peer, reason, target = await refused(desk)
    assert (tenant, subject, peer, reason) == ("", "", HOME, "ANSWER_LINK_NOT_FOUND")
    assert task.task_id not in target
    assert token.split("_", 2)[1] in target
    assert token.split("_", 2)[2] not in target


async def test_an_answer_after_the_end_of_its_wait_is_recorded(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    task, token = await sent_to(desk, await webhook_receiver())
    assert (await desk.answer(token, decision="allow")).status == 200
    assert (await desk.answer(token, decision="deny")).code == "WAIT_OVER"
    tenant, subject, peer, reason, target = await refused(desk)
    assert (tenant, subject, peer, reason) == ("default", "link/webhook/hook", HOME, "WAIT_OVER")
    assert task.task_id in target


async def test_an_answer_by_an_expired_link_is_recorded(desk: Desk, webhook_receiver: MakeReceiver) -> None:
    """With its addressee, because the token is right."""
    task, token = await sent_to(desk, await webhook_receiver())
    await desk.replica.query("update ledger.answer_links set expires_at = now() returning link_id")
    assert (await desk.answer(token, decision="allow")).code == "ANSWER_LINK_EXPIRED"
    tenant, subject, peer, reason, target = await refused(desk)
    assert (tenant, subject, peer, reason) == ("default", "link/webhook/hook", HOME, "ANSWER_LINK_EXPIRED")
    assert task.task_id in target


@pytest.mark.nightly
async def test_the_records_name_the_process_that_answered(
    checkpoint: MakeCheckpoint,
    mail_server: MakeMailServer,
    webhook_receiver: MakeReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also that of an answer that is admitted, which no gateway records."""
    monkeypatch.setattr(Security, "identity", "spiffe://tenure/checkpoint/here")
    mails = await mail_server()
    async with open_desk(await checkpoint(**desk_settings(mails)), mails) as made:
        _, token = await sent_to(made, await webhook_receiver())
        assert (await made.answer(token, decision="allow")).status == 200
        assert (await made.answer(token, decision="deny")).code == "WAIT_OVER"
        await refused(made)
        rows = await made.replica.query(
            f"select decision, recorder from ledger.audit_records where method = '{METHOD}' order by decision"
        )
    assert [tuple(row) for row in rows] == [
        ("ALLOWED", "spiffe://tenure/checkpoint/here"),
        ("DENIED", "spiffe://tenure/checkpoint/here"),
    ]
