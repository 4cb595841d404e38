"""The session of `own_worker.py`: one lease for all its claims, renewed with any of the coordinators."""

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
BROKEN: Final = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError, TimeoutError, EOFError)
"""The errors of a broken stream; in Python a write to an ended stream is an InvalidStateError."""


@dataclass
class Held:
    """A claim. Every renewal reports `progress`: a live worker may still make no progress (rule 3)."""

    grant: pb.Grant
    token: token_pb2.FencingToken
    progress: pb.Progress = field(default_factory=pb.Progress)
    cancelled: bool = False
    work: asyncio.Task[None] | None = None

    def to_wire(self) -> pb.Holding:
        return pb.Holding(task_id=self.grant.task_id, claim_id=self.grant.claim_id, progress=self.progress)


class Session:
    """Calls `take` with each grant; cancels the work of lost claims."""

    def __init__(self, stub: Any, hello: pb.Hello, take: Callable[[Held], None]) -> None:
        self.held: dict[str, Held] = {}
        self._stub, self._hello, self._take = stub, hello, take
        self._slots = hello.free_slots
        self._ttl_seconds, self._interval_seconds, self._trusted_until = 0.0, 0.0, 0.0
        self._answered, self._grants_read = 0, 0
        self._renewal_answered, self._trust_grew = asyncio.Event(), asyncio.Event()
        self._stream: Any = None
        self._is_detaching = False
        self._write_lock = asyncio.Lock()

    async def run(self) -> None:
        """Rule 1. Attaches, and attaches again whenever the stream breaks, with the same session_id, to any replica.

        The session keeps its claims if it attaches again within half a second. A renewal interval without an answer
        also counts as a break.
        """
        former, failures = None, 0
        while not self._is_detaching:
            stream = self._stub.Session()
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    await self._attach(stream)
                if former is not None:
                    former.cancel()  # not before: to the coordinator, a broken stream looks like a dead worker
                former, self._stream, failures = stream, stream, 0
                await self._serve(stream)
            except* BROKEN as broken:
                if stream is not former:
                    stream.cancel()
                failures += 1
                print(f"detached: {describe_error(broken.exceptions[0])}", flush=True)
            await asyncio.sleep(random.uniform(0.05, 0.1) * min(2**failures, 20))

    async def trusted(self) -> None:
        """Rule 2. Waits until the trust window is open: begin nothing new outside it.

        The window counts from the *sending* of the last answered renewal, by a clock that goes on while this process
        is frozen. Work that has begun may be committed outside the window; the fence decides.
        """
        while time.monotonic() >= self._trusted_until:
            await self._trust_grew.wait()

    async def give_back(self, held: Held, reason: str) -> None:
        """Releases a claim, best effort: the coordinator also notices, some seconds later, that renewals omit it."""
        if self.held.pop(held.grant.claim_id, None) is None:
            return  # the claim is already lost
        release = pb.Release(task_id=held.grant.task_id, claim_id=held.grant.claim_id, reason=reason)
        try:
            await self._write(self._stream, release=release)
            await self._write(self._stream, slots=pb.Slots(free_slots=self._free(), grants_read=self._grants_read))
        except BROKEN as broken:
            print(f"{held.grant.task_id} could not be released: {describe_error(broken)}", flush=True)

    async def drain(self) -> None:
        """Takes no more tasks and releases all claims: a task may be released anywhere, its next owner resumes it."""
        self._is_detaching = True
        try:
            await self._write(self._stream, drain=pb.Drain())
            for held in list(self.held.values()):
                if held.work is not None:
                    held.work.cancel()
                await self.give_back(held, "WORKER_DRAINED")
            await self._stream.done_writing()
        except BROKEN as broken:
            print(f"the drain could not be reported to the coordinator: {describe_error(broken)}", flush=True)

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
        if welcome.session_id != self._hello.session_id:  # a new lease; attaching does not renew an existing lease
            self._trust(sent_at)
        self._hello.session_id = welcome.session_id
        for claim_id in welcome.lost_claim_ids:
            self._drop(claim_id, "SESSION_LOST")
        print(f"attached, session {welcome.session_id}", flush=True)

    async def _serve(self, stream: Any) -> None:
        """Reads and renews until one of the two fails; then stops the other and raises the failure.

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
            self._renewal_answered.clear()
            renewal = pb.Renew(
                renew_number=number,
                holdings=[held.to_wire() for held in self.held.values()],
                free_slots=self._free(),
                grants_read=self._grants_read,
            )
            await self._write(stream, renew=renewal)
            async with asyncio.timeout(self._interval_seconds):
                while self._answered != number:
                    await self._renewal_answered.wait()
                    self._renewal_answered.clear()
            self._trust(sent_at)
            await asyncio.sleep(sent_at + self._interval_seconds - time.monotonic())

    def _trust(self, sent_at: float) -> None:
        self._trusted_until = sent_at + self._ttl_seconds - MARGIN_SECONDS
        self._trust_grew.set()
        self._trust_grew.clear()

    async def _listen(self, stream: Any) -> None:
        while (response := await stream.read()) is not grpc.aio.EOF:
            match response.WhichOneof("message"):
                case "grant":
                    self._grants_read += 1
                    held = self.held[response.grant.claim_id] = Held(response.grant, response.grant.token)
                    self._take(held)
                case "renewed":
                    self._on_renewed(response.renewed)
                case "revoke":
                    self._drop(response.revoke.claim_id, response.revoke.reason)
                case "cancel":
                    for held in self.held.values():
                        held.cancelled = held.cancelled or held.grant.task_id == response.cancel.task_id
                case "goaway":
                    break  # this replica drains: attach to another
        raise EOFError("the coordinator ended the stream")

    def _on_renewed(self, renewed: pb.Renewed) -> None:
        """Replaces tokens that were signed again because the signing key changed."""
        for token in renewed.tokens:
            held = self.held.get(token_pb2.TokenClaims.FromString(token.claims).claim_id)
            if held is not None:
                held.token = token
        self._answered = renewed.renew_number
        self._renewal_answered.set()

    def _drop(self, claim_id: str, why: str) -> None:
        """Drops a lost claim and cancels its work. A lost claim needs no release."""
        held = self.held.pop(claim_id, None)
        if held is not None and held.work is not None:
            print(f"{held.grant.task_id} dropped: {why}", flush=True)
            held.work.cancel()

    def _free(self) -> int:
        return max(0, self._slots - len(self.held))

    async def _write(self, stream: Any, **message: Any) -> None:
        """Writes one message. gRPC allows one write at a time."""
        if stream is None:
            raise EOFError("not attached yet")
        async with self._write_lock:
            await stream.write(pb.SessionRequest(**message))


def seconds(duration: Any) -> float:
    """Returns the seconds of a google.protobuf.Duration."""
    return float(duration.ToNanoseconds() / 1e9)


def describe_error(error: BaseException) -> str:
    """Returns the error in one line."""
    message = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return f"{type(error).__name__} {message or ''}"
