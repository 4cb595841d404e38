"""The session of `own_worker.py`: one lease for all its tasks, kept with any of the coordinators."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import token_pb2

MARGIN_SECONDS: Final = 1.0
HELLO_SECONDS: Final = 2.0
BROKEN: Final = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError, EOFError)
"""How a stream ends; a write to one that has ended is an InvalidStateError in Python."""


@dataclass
class Held:
    """A claim. `progress` goes along with every renewal: being alive and getting on are two facts (rule 3)."""

    grant: pb.Grant
    token: token_pb2.FencingToken
    progress: pb.Progress = field(default_factory=pb.Progress)
    cancelled: bool = False
    work: asyncio.Task[None] | None = None

    def to_wire(self) -> pb.Holding:
        return pb.Holding(task_id=self.grant.task_id, claim_id=self.grant.claim_id, progress=self.progress)


class Session:
    """Calls `take` with each grant; cancels the work on what is lost."""

    def __init__(self, stub: Any, hello: pb.Hello, take: Callable[[Held], None]) -> None:
        self.held: dict[str, Held] = {}
        self._stub, self._hello, self._take = stub, hello, take
        self._slots = hello.free_slots
        self._ttl_seconds, self._interval_seconds, self._trusted_until = 0.0, 0.0, 0.0
        self._answered, self._grants_read = 0, 0
        self._heard, self._trust_grew = asyncio.Event(), asyncio.Event()
        self._stream: Any = None
        self._is_detaching = False
        self._speaking = asyncio.Lock()

    async def run(self) -> None:
        """Rule 1. Attach, and again whenever the stream breaks: under the same session_id, to any replica, the claims
        are kept, if it takes less than half a second. Nobody answers for one interval: that is a break as well.
        """
        former, failures = None, 0
        while not self._is_detaching:
            stream = self._stub.Session()
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    await self._attach(stream)
                if former is not None:
                    former.cancel()  # not before: a stream that breaks looks like our death
                former, self._stream, failures = stream, stream, 0
                await self._serve(stream)
            except* BROKEN as broken:
                if stream is not former:
                    stream.cancel()
                failures += 1
                print(f"detached: {describe_error(broken.exceptions[0])}", flush=True)
            await asyncio.sleep(random.uniform(0.05, 0.1) * min(2**failures, 20))

    async def trusted(self) -> None:
        """Rule 2, the trust window: it is counted from the *sending* of the last renewal that was answered, by a clock
        that goes on while this process is frozen. Outside of it nothing is begun; what was begun may be committed, and
        the fence decides.
        """
        while time.monotonic() >= self._trusted_until:
            await self._trust_grew.wait()

    async def give_back(self, held: Held, reason: str) -> None:
        """Best effort: a claim that our renewals name no more is noticed as well, some seconds later."""
        if self.held.pop(held.grant.claim_id, None) is None:
            return  # lost already
        release = pb.Release(task_id=held.grant.task_id, claim_id=held.grant.claim_id, reason=reason)
        try:
            await self._tell(self._stream, release=release)
            await self._tell(self._stream, slots=pb.Slots(free_slots=self._free(), grants_read=self._grants_read))
        except BROKEN as broken:
            print(f"{held.grant.task_id} could not be given back: {describe_error(broken)}", flush=True)

    async def drain(self) -> None:
        """Takes no more and lets go of everything: a task may be left at any point, its next owner resumes it."""
        self._is_detaching = True
        try:
            await self._tell(self._stream, drain=pb.Drain())
            for held in list(self.held.values()):
                if held.work is not None:
                    held.work.cancel()
                await self.give_back(held, "WORKER_DRAINED")
            await self._stream.done_writing()
        except BROKEN as broken:
            print(f"the coordinator could not be told: {describe_error(broken)}", flush=True)

    async def _attach(self, stream: Any) -> None:
        sent_at = time.monotonic()
        del self._hello.holdings[:]
        self._hello.holdings.extend(held.to_wire() for held in self.held.values())
        self._hello.free_slots = self._free()
        await stream.write(pb.SessionRequest(hello=self._hello))
        answer = await stream.read()
        if answer is grpc.aio.EOF:
            raise EOFError("no Welcome")
        welcome, self._grants_read = answer.welcome, 0
        self._ttl_seconds, self._interval_seconds = seconds(welcome.ttl), seconds(welcome.renew_interval)
        if welcome.session_id != self._hello.session_id:  # a new lease; an old one is as good as its last renewal
            self._trust(sent_at)
        self._hello.session_id = welcome.session_id
        for claim_id in welcome.lost_claim_ids:
            self._drop(claim_id, "SESSION_LOST")
        print(f"attached, session {welcome.session_id}", flush=True)

    async def _serve(self, stream: Any) -> None:
        """Listen and renew until one of them fails; then stop the other and raise the failure.

        `asyncio.TaskGroup` is not used: before Python 3.13 it can leave a cancellation in its task, and a later timeout
        there ends the loop.
        """
        duties = [asyncio.create_task(self._listen(stream)), asyncio.create_task(self._renew(stream))]
        try:
            ended, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for duty in duties:
                duty.cancel()
            await asyncio.gather(*duties, return_exceptions=True)
        for duty in ended:
            duty.result()

    async def _renew(self, stream: Any) -> None:
        number = 0
        while True:
            number, sent_at = number + 1, time.monotonic()
            self._heard.clear()
            renewal = pb.Renew(
                renew_number=number,
                holdings=[held.to_wire() for held in self.held.values()],
                free_slots=self._free(),
                grants_read=self._grants_read,
            )
            await self._tell(stream, renew=renewal)
            async with asyncio.timeout(self._interval_seconds):
                while self._answered != number:
                    await self._heard.wait()
                    self._heard.clear()
            self._trust(sent_at)
            await asyncio.sleep(sent_at + self._interval_seconds - time.monotonic())

    def _trust(self, sent_at: float) -> None:
        self._trusted_until = sent_at + self._ttl_seconds - MARGIN_SECONDS
        self._trust_grew.set()
        self._trust_grew.clear()

    async def _listen(self, stream: Any) -> None:
        while (said := await stream.read()) is not grpc.aio.EOF:
            match said.WhichOneof("message"):
                case "grant":
                    self._grants_read += 1
                    held = self.held[said.grant.claim_id] = Held(said.grant, said.grant.token)
                    self._take(held)
                case "renewed":
                    self._hear_renewed(said.renewed)
                case "revoke":
                    self._drop(said.revoke.claim_id, said.revoke.reason)
                case "cancel":
                    for held in self.held.values():
                        held.cancelled = held.cancelled or held.grant.task_id == said.cancel.task_id
                case "goaway":
                    break  # this replica drains: to the next one
        raise EOFError("the coordinator ended the stream")

    def _hear_renewed(self, renewed: pb.Renewed) -> None:
        """Tokens that were signed anew, because the signing key changed, replace the old ones."""
        for token in renewed.tokens:
            held = self.held.get(token_pb2.TokenClaims.FromString(token.claims).claim_id)
            if held is not None:
                held.token = token
        self._answered = renewed.renew_number
        self._heard.set()

    def _drop(self, claim_id: str, why: str) -> None:
        """Nothing of this task is ours any more, and nothing has to be given back."""
        held = self.held.pop(claim_id, None)
        if held is not None and held.work is not None:
            print(f"{held.grant.task_id} dropped: {why}", flush=True)
            held.work.cancel()

    def _free(self) -> int:
        return max(0, self._slots - len(self.held))

    async def _tell(self, stream: Any, **message: Any) -> None:
        """gRPC wants one write at a time."""
        if stream is None:
            raise EOFError("not attached yet")
        async with self._speaking:
            await stream.write(pb.SessionRequest(**message))


def seconds(duration: Any) -> float:
    """Of a google.protobuf.Duration."""
    return float(duration.ToNanoseconds() / 1e9)


def describe_error(error: BaseException) -> str:
    """In a line."""
    words = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return f"{type(error).__name__} {words or ''}"
