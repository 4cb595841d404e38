"""A worker that does what a test says: the session and the ledger by their raw stubs, and no loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections import Counter
from typing import Any, cast

import grpc

from tenure.domain.errors import TenureError
from tenure.domain.fairness import ReservedSlots
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.tls import ChannelTls
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import task_pb2, token_pb2
from tenure.v1.coordinator_service_pb2_grpc import CoordinatorServiceStub
from tenure.wire.common import PRIORITIES
from tenure.wire.coordinator_service import lower_tiers
from tests.support.patience import AGAIN, CALL_SECONDS, PATIENCE_SECONDS


class ScriptedWorker:
    """One attachment of a worker. Renews by itself until it is frozen; everything else the test says."""

    def __init__(self, address: str, ledger: Any, *, tls: ChannelTls | None = None, **hello: Any) -> None:
        self.hello = pb.Hello(**{"session_secret": os.urandom(32), **hello})
        self._tls = tls
        self.session_id = ""
        self.lost: list[str] = []
        self.held: dict[str, pb.Grant] = {}
        self.progress: dict[str, pb.Progress] = {}
        self.heard: list[pb.SessionResponse] = []
        self.ended_with: BaseException | None = None
        self.named = True
        kept = self.hello.free_slots - self.hello.lower_tiers.below_high if self.hello.HasField("lower_tiers") else 0
        self.reserved = ReservedSlots(high=kept)
        self._address = address
        self._ledger = ledger
        self._grants: asyncio.Queue[pb.Grant] = asyncio.Queue()
        self._grants_read = 0
        self._heard_more = asyncio.Condition()
        self._frozen = False
        self._tasks: list[asyncio.Task[None]] = []
        self._writing = asyncio.Lock()

    async def attach(self) -> ScriptedWorker:
        """Say Hello and hear Welcome; from then on it renews."""
        self._channel = open_channel(self._address, tls=self._tls)
        self._call = cast("Any", CoordinatorServiceStub(self._channel).Session())
        await self._write(pb.SessionRequest(hello=self.hello))
        async with asyncio.timeout(PATIENCE_SECONDS):
            welcome = (await self._call.read()).welcome
        self.session_id, self.lost = welcome.session_id, list(welcome.lost_claim_ids)
        interval = welcome.renew_interval.ToTimedelta().total_seconds()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._renew(interval))]
        return self

    async def reattach(self, address: str = "", *, renews: bool = True) -> ScriptedWorker:
        """The same worker over another stream, with what it holds. `renews`: not if it gave up on Welcome."""
        hello = pb.Hello()
        hello.CopyFrom(self.hello)
        hello.session_id = self.session_id
        hello.ClearField("holdings")
        hello.holdings.extend(self._held_tasks())
        other = ScriptedWorker(address or self._address, self._ledger, tls=self._tls)
        other.hello, other.held, other.progress = hello, dict(self.held), dict(self.progress)
        if not renews:
            other.freeze()
        return await other.attach()

    def freeze(self) -> None:
        """It stops renewing; its stream stays."""
        self._frozen = True

    async def break_off(self) -> None:
        """Its stream breaks, as when it is killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.cancel()
        await self._channel.close()

    async def close(self) -> None:
        """The stream ends in order."""
        await self._call.done_writing()

    async def next_grant(self, within_seconds: float = PATIENCE_SECONDS) -> pb.Grant:
        async with asyncio.timeout(within_seconds):
            return await self._grants.get()

    async def next_grants(self, count: int) -> list[pb.Grant]:
        return [await self.next_grant() for _ in range(count)]

    @property
    def grants_waiting(self) -> int:
        return self._grants.qsize()

    async def hears(self, kind: str, within_seconds: float = PATIENCE_SECONDS) -> Any:
        """The first message of a kind, waited for."""

        def matching() -> list[Any]:
            return [getattr(each, kind) for each in self.heard if each.WhichOneof("message") == kind]

        async with asyncio.timeout(within_seconds), self._heard_more:
            await self._heard_more.wait_for(lambda: matching() or self.ended_with is not None)
        assert matching(), f"the stream ended with {self.ended_with!r}"
        return matching()[0]

    async def hears_tokens(self, part: int = 0) -> list[token_pb2.FencingToken]:
        """The tokens that were signed anew in the message of this number among those with tokens, waited for."""

        def matching() -> list[pb.Renewed]:
            return [each.renewed for each in self.heard if each.HasField("renewed") and each.renewed.tokens]

        async with asyncio.timeout(PATIENCE_SECONDS), self._heard_more:
            await self._heard_more.wait_for(lambda: len(matching()) > part or self.ended_with is not None)
        assert len(matching()) > part, f"the stream ended after {len(matching())} parts with {self.ended_with!r}"
        return list(matching()[part].tokens)

    async def ends(self, within_seconds: float = PATIENCE_SECONDS) -> BaseException:
        """Waits for the end of the stream and returns its status."""
        async with asyncio.timeout(within_seconds), self._heard_more:
            await self._heard_more.wait_for(lambda: self.ended_with is not None)
        assert self.ended_with is not None
        return self.ended_with

    async def open(self, grant: pb.Grant) -> ledger_pb.OpenHeader:
        """Opens as a worker does: again when the ledger is overloaded."""

        async def once() -> ledger_pb.OpenHeader:
            header = ledger_pb.OpenHeader()
            async for part in self._ledger.Open(ledger_pb.OpenRequest(token=grant.token), timeout=CALL_SECONDS):
                if part.HasField("header"):
                    header = part.header
            return header

        return await retrying(once, AGAIN)

    async def commit(self, grant: pb.Grant, number: int, **content: Any) -> ledger_pb.CommitResponse:
        request = ledger_pb.CommitRequest(
            token=grant.token, commit_id=str(uuid.uuid4()), commit_number=number, **content
        )
        response: ledger_pb.CommitResponse = await self._ledger.Commit(request, timeout=CALL_SECONDS)
        return response

    async def succeed(self, grant: pb.Grant) -> None:
        """Open, close out and release: a whole task."""
        header = await self.open(grant)
        ended = ledger_pb.Transition(to_state=task_pb2.TASK_STATE_SUCCEEDED, reason="FINAL_ANSWER", result="done")
        await self.commit(grant, header.next_commit_number, transition=ended)
        await self.release(grant, "CLOSED")

    async def release(self, grant: pb.Grant, reason: str) -> None:
        self.held.pop(grant.claim_id, None)
        release = pb.Release(task_id=grant.task_id, claim_id=grant.claim_id, reason=reason)
        await self._write(pb.SessionRequest(release=release))

    async def report_slots(self, slots: int) -> None:
        """Have this many slots from now on, and report at once those that no held task fills."""
        self.hello.free_slots = slots
        free_slots = max(0, slots - len(self.held))
        await self._write(pb.SessionRequest(slots=pb.Slots(free_slots=free_slots, grants_read=self._grants_read)))

    async def say(self, request: pb.SessionRequest) -> None:
        """Whatever it is. A stream that has ended is not an error: how it ended is heard."""
        with contextlib.suppress(TenureError, PeerFailed, asyncio.InvalidStateError):
            await self._write(request)

    async def drain(self) -> None:
        await self._write(pb.SessionRequest(drain=pb.Drain()))

    async def _write(self, request: pb.SessionRequest) -> None:
        async with self._writing:
            await self._call.write(request)

    def _held_tasks(self) -> list[pb.Holding]:
        if not self.named:
            return []
        return [
            pb.Holding(task_id=grant.task_id, claim_id=claim_id, progress=self.progress.get(claim_id))
            for claim_id, grant in self.held.items()
        ]

    async def _renew(self, interval_seconds: float) -> None:
        number = 0
        with contextlib.suppress(TenureError, PeerFailed):
            while not self._frozen:
                number += 1
                held = Counter(PRIORITIES.to_domain(grant.priority) for grant in self.held.values())
                places = self.reserved.slots(self.hello.free_slots, held)
                renew = pb.Renew(
                    renew_number=number,
                    holdings=self._held_tasks(),
                    free_slots=places.any,
                    lower_tiers=lower_tiers(places),
                    grants_read=self._grants_read,
                )
                await self._write(pb.SessionRequest(renew=renew))
                await asyncio.sleep(interval_seconds)

    async def _read(self) -> None:
        ended: BaseException = EOFError("in order")
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                await self._hear(response)
        except (TenureError, PeerFailed) as error:
            ended = error
        async with self._heard_more:
            self.ended_with = ended
            self._heard_more.notify_all()

    async def _hear(self, response: pb.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "grant":
                self._grants_read += 1
                self.held[response.grant.claim_id] = response.grant
                self._grants.put_nowait(response.grant)
            case "revoke":
                self.held.pop(response.revoke.claim_id, None)
        async with self._heard_more:
            self.heard.append(response)
            self._heard_more.notify_all()
