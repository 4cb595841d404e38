"""A replica of the ledger that sends answer links, and the pages of a gateway before it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from edges.answer_links.pages import AnswerPage, AnswerPages
from services.checkpoint.approvals.issuing import LinkSettings
from services.checkpoint.webhooks.sending import WebhookSettings
from services.gateway.peers import Peers
from tenure.v1 import approval_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1.approval_service_pb2_grpc import ApprovalServiceStub
from tests.conformance.test_ledger_waits import (
    leave_of_a_person,
    waiting,
)
from tests.conformance.webhook_client import HERE, WebhookClient
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint
from tests.support.fix_mail import MailServer, smtp
from tests.support.fix_webhooks import Receiver

PUBLIC = "https://tenure.example.com"
TOKENS = re.compile(r"tal_[a-z0-9]{12}_[A-Za-z0-9_-]{43}")
HOME = "198.51.100.7"


@dataclass
class Desk:
    """A replica that sends links, and the pages of a gateway before it."""

    replica: Checkpoint
    hooks: WebhookClient
    pages: AnswerPages
    mails: MailServer
    requests: int = 0

    @property
    def address(self) -> str:
        """Another address each time: the rates of requests do not matter to these tests."""
        self.requests += 1
        return f"198.51.100.{self.requests}"

    async def show(self, token: str) -> AnswerPage:
        return await self.pages.show(token, self.address)

    async def answer(self, token: str, **fields: str) -> AnswerPage:
        """Answers as the page does, with what it shows."""
        shown = re.search(r'name="shown" value="([0-9a-f]{64})"', (await self.show(token)).body)
        return await self.post(token, **{"shown": shown[1] if shown else "0" * 64, **fields})

    async def post(self, token: str, **fields: str) -> AnswerPage:
        return await self.pages.answer(token, HOME, fields)

    async def group(self, name: str, *members: str) -> None:
        stub: Any = ApprovalServiceStub(self.replica.channel)
        request = pb.SetApproverGroupRequest(name=name, members=members, actor="root")
        await stub.SetApproverGroup(request, timeout=TIMEOUT_SECONDS)

    async def unchanged(self, task: task_pb2.Task) -> bool:
        """Whether nothing was written to the task since."""
        now = await self.replica.get(task.task_id)
        return (now.state, now.sequence, now.wait) == (task.state, task.sequence, task.wait)


def desk_settings(mails: MailServer, **changes: Any) -> dict[str, Any]:
    links = LinkSettings(**{"public_url": PUBLIC, **changes})
    return {"webhook": WebhookSettings(**HERE), "smtp": smtp(mails), "answer_link": links}


async def sent_to(desk: Desk, receiver: Receiver, **spec: Any) -> tuple[task_pb2.Task, str]:
    """A task that waits for the approval of a call, and the token that the endpoint received."""
    await desk.hooks.create(receiver, answer_links=True)
    task = await waiting(desk.replica, leave_of_a_person(), **spec)
    (delivery,) = await receiver.until(1)
    return task, token_in(delivery.text)


def token_in(text: str) -> str:
    tokens: set[str] = set(TOKENS.findall(text))
    assert len(tokens) == 1, text
    return tokens.pop()


@asynccontextmanager
async def open_desk(replica: Checkpoint, mails: MailServer) -> AsyncIterator[Desk]:
    async with Peers((replica.address,), ("127.0.0.1:1",), ("127.0.0.1:1",)) as peers:
        yield Desk(replica, WebhookClient(replica), AnswerPages(peers), mails)
