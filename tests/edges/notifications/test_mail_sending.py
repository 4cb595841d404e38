"""One e-mail, to a real SMTP server that does what it likes."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from edges.notifications.smtp import MailSender, OutgoingMail
from services.checkpoint.webhooks.smtp_settings import SmtpSettings
from tenure.domain.webhooks import FailureKind, WebhookResponse
from tenure.runtime.settings import ConfigurationError, Secret, load
from tests.support.certificates import issue
from tests.support.fix_mail import LOST, PASSWORD, USER, MailServer, MakeMailServer
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tcp_server import tcp_server

# What aiosmtpd warns of in its own code, and of a login without STARTTLS, which implicit TLS does not need.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Session.login_data:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS:UserWarning"),
]

# After STARTTLS aiosmtpd leaves the first transport of its side open.
OPEN_SERVER = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

DELIVERY_ID = "01a20234-c154-73c4-bf83-294e50055e63"
ANN, BOB, CEM = "ann@example.com", "bob@example.com", "cem@example.com"


def settings(server: MailServer, **changes: Any) -> SmtpSettings:
    plain = {"host": "localhost", "port": server.port, "tls": "none", "from_address": "tenure@example.com"}
    return SmtpSettings(**{**plain, **changes})


def mail(*remaining: str, recipients: tuple[str, ...] = (), **task: Any) -> OutgoingMail:
    data = {"task_id": DELIVERY_ID, "state": "SUCCEEDED", "task": task}
    body = json.dumps({"type": "task.succeeded", "timestamp": "2026-11-22T08:00:00Z", "data": data})
    return OutgoingMail(DELIVERY_ID, body, recipients or remaining, remaining)


async def send(server: MailServer, *remaining: str, **changes: Any) -> WebhookResponse:
    return await MailSender(settings(server, **changes)).send(mail(*(remaining or (ANN,))))


async def test_a_mail_has_the_ids_of_its_delivery_and_task(mail_server: MakeMailServer) -> None:
    server = await mail_server()
    sender = MailSender(settings(server))
    outgoing = mail(ANN, BOB, goal="Zahle 3 €", result=".\n..\nFrom here")
    for _ in range(2):
        answer = await sender.send(outgoing)
        assert (answer.received, answer.accepted_addresses) == (True, (ANN, BOB))
    first, second = server.took
    assert first.content == second.content
    assert (first.sender, first.recipients) == ("tenure@example.com", (ANN, BOB))
    message = first.message
    assert message["Message-ID"] == f"<{DELIVERY_ID}@example.com>"
    assert message["Subject"] == "[Tenure] Succeeded: Zahle 3 €"
    assert message["To"] == f"{ANN}, {BOB}"
    assert message["Auto-Submitted"] == "auto-generated"
    assert "\n> .\n> ..\n> From here\n" in first.text


async def test_refused_recipients_are_named_and_others_accept(mail_server: MakeMailServer) -> None:
    server = await mail_server()
    server.rcpt = lambda address: "550 no such user" if address == BOB else ""
    answer = await send(server, ANN, BOB, CEM)
    assert (answer.status, answer.failure, answer.accepted_addresses) == (550, FailureKind.FINAL, (ANN, CEM))
    assert answer.problem == f"{BOB}: 550 no such user"
    assert server.took[0].recipients == (ANN, CEM)


async def test_one_temporary_refusal_makes_all_temporary(mail_server: MakeMailServer) -> None:
    server = await mail_server()
    server.rcpt = lambda address: {ANN: "550 no such user", BOB: "451 greylisted"}[address]
    answer = await send(server, ANN, BOB)
    assert (answer.status, answer.failure, answer.accepted_addresses) == (451, FailureKind.TEMPORARY, ())
    assert server.came == []


@pytest.mark.parametrize(
    ("reply", "failure"), [("451 later", FailureKind.TEMPORARY), ("554 it is spam", FailureKind.FINAL)]
)
@pytest.mark.parametrize("hook", ["mail", "data"])
async def test_the_reply_to_sender_and_message_decides(
    mail_server: MakeMailServer, hook: str, reply: str, failure: FailureKind
) -> None:
    server = await mail_server()
    setattr(server, hook, lambda _: reply)
    answer = await send(server)
    assert (answer.received, answer.failure, answer.accepted_addresses) == (False, failure, ())
    assert answer.problem.endswith(reply)


async def test_a_connection_lost_in_data_is_a_failure(mail_server: MakeMailServer) -> None:
    server = await mail_server()
    server.loses_data = lambda: not server.came and server.connections == 1
    lost = await send(server)
    assert (lost.status, lost.failure, server.came) == (0, FailureKind.TEMPORARY, [])
    server.data = lambda _mail: LOST
    unknown = await send(server)
    assert (unknown.status, unknown.failure, len(server.came)) == (0, FailureKind.TEMPORARY, 1)


async def test_a_silent_server_is_given_up_after_the_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with tcp_server(silent) as port:
        answer = await send(MailServer(port=port), timeout_seconds=0.2)
    assert answer.problem == "the e-mail was not accepted within 0.2 s"


async def test_unreachable_server_is_a_temporary_failure(mail_server: MakeMailServer) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # it does not listen, so it refuses, and no other process gets the port
        answer = await send(MailServer(port=bound.getsockname()[1]))
    assert (answer.status, answer.failure) == (0, FailureKind.TEMPORARY)
    assert answer.problem == "the SMTP server cannot be reached (SMTPConnectError); see the log"


@OPEN_SERVER
@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_mail_goes_over_tls_after_a_login(mail_server: MakeMailServer, tmp_path: Path, tls: str) -> None:
    authority = issue("ours")
    context = issue("server", ("localhost",), authority).server(tmp_path)
    server = await mail_server(**{tls: context}, login=True)
    ca_file = authority.write(tmp_path / "ca.pem")
    login = {"tls": tls, "user": USER, "password": Secret(PASSWORD)}
    assert (await send(server, ca_file=ca_file, **login)).received
    assert (server.took[0].over_tls, server.took[0].user) == (True, USER)


@OPEN_SERVER
@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_an_unknown_certificate_gets_no_mail(mail_server: MakeMailServer, tmp_path: Path, tls: str) -> None:
    server = await mail_server(**{tls: issue("server", ("localhost",), issue("ours")).server(tmp_path)})
    answer = await send(server, tls=tls)
    assert (answer.status, answer.failure, server.came) == (0, FailureKind.TEMPORARY, [])
    assert "certificate" in answer.problem
    assert "localhost" not in answer.problem  # the name and the address of the server are the operator's


async def test_a_refused_login_is_the_operators_problem(mail_server: MakeMailServer, tmp_path: Path) -> None:
    authority = issue("ours")
    server = await mail_server(starttls=issue("server", ("localhost",), authority).server(tmp_path), login=True)
    secured = {"tls": "starttls", "ca_file": authority.write(tmp_path / "ca.pem")}
    wrong = await send(server, user=USER, password=Secret("wrong"), **secured)
    assert (wrong.status, wrong.failure) == (535, FailureKind.TEMPORARY)
    assert wrong.problem == "the SMTP server refused the connection (535)"
    without = await send(server, **secured)
    assert (without.status, without.failure, server.came) == (530, FailureKind.TEMPORARY, [])


async def test_a_server_without_starttls_gets_no_mail(mail_server: MakeMailServer) -> None:
    server = await mail_server()
    answer = await send(server, tls="starttls")
    assert (answer.failure, server.came) == (FailureKind.TEMPORARY, [])
    assert "STARTTLS" in answer.problem


async def test_connections_of_a_process_are_bounded(
    mail_server: MakeMailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await mail_server()
    open_now, most = 0, 0
    real = server.handle_DATA

    async def slow(*arguments: Any) -> str:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while most < 2:  # the other connection comes, however slow the machine is
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)  # a third one would come meanwhile
        open_now -= 1
        return await real(*arguments)

    monkeypatch.setattr(server, "handle_DATA", slow)
    sender = MailSender(settings(server, max_connections=2))
    answers = await asyncio.gather(*(sender.send(mail(ANN)) for _ in range(6)))
    assert all(answer.received for answer in answers)
    assert most == 2


async def test_without_a_server_or_for_other_domains_nothing_goes(mail_server: MakeMailServer) -> None:
    server = await mail_server()
    nowhere = await MailSender(SmtpSettings()).send(mail(ANN))
    assert (nowhere.failure, "TENURE_CHECKPOINT_SMTP_HOST" in nowhere.problem) == (FailureKind.TEMPORARY, True)
    refused = await send(server, recipient_domains=("tenure.example",))
    assert (refused.failure, server.connections) == (FailureKind.FINAL, 0)


PLAIN = {"HOST": "mail.example.com", "FROM_ADDRESS": "tenure@example.com"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"FROM_ADDRESS": ""}, "FROM_ADDRESS must be"),
        ({"FROM_ADDRESS": "Tenure <tenure@example.com>"}, "FROM_ADDRESS must be"),
        ({"HOST": ""}, "HOST is missing"),
        ({"TLS": "none"}, "only for localhost"),
        ({"TLS": "maybe"}, "must be one of"),
        ({"USER": "tenure"}, "USER needs"),
        ({"PASSWORD": "x"}, "USER needs"),
        ({"USER": "u", "PASSWORD": "x", "PASSWORD_FILE": "/nowhere"}, "unset one of them"),
        ({"USER": "u", "PASSWORD_FILE": "/nowhere"}, "cannot be read from /nowhere: No such file"),
        ({"CA_FILE": "/nowhere"}, "/nowhere has no certificates"),
        ({"CA_FILE": __file__}, "has no certificates"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_start(changes: dict[str, str], problem: str) -> None:
    environment = {f"TENURE_CHECKPOINT_SMTP_{name}": value for name, value in {**PLAIN, **changes}.items()}
    with pytest.raises(ConfigurationError, match=problem):
        load(SmtpSettings, environment, prefix="TENURE_CHECKPOINT_SMTP_")
