"""Agents that share a budget and do to it whatever workers, their deaths and their successors may do.

Everything is drawn from a seed; what the replicas make of it at once is up to them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tenure.domain.errors import StaleEpoch, TryLater
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tests.support.fix_checkpoint import (
    Checkpoint,
    Owner,
    answer,
    entry,
    reserve,
)

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
MAX_SECONDS_OF_A_CALL = 0.02


@dataclass
class Spender:
    """One task of a root, under any owner. `met` counts what happened, over all spenders of a run."""

    replicas: list[Checkpoint]
    task_id: str
    rng: random.Random
    met: Counter[str]
    surprises: bool = False
    step: int = 0
    attempt: int = 1
    granted: int = 0
    _owner: Owner | None = field(default=None)

    @property
    def owner(self) -> Owner:
        assert self._owner is not None, "claimed first"
        return self._owner

    async def live(self, turns: int) -> None:
        """So many model calls, or as many tries as others leave nothing for."""
        await self.claim()
        for _ in range(turns):
            if await self.ask_for_a_call():
                await asyncio.sleep(self.rng.uniform(0, MAX_SECONDS_OF_A_CALL))  # the model answers: others go on
                await self.end_the_call()

    async def claim(self) -> None:
        """By the next worker, through any replica; an attempt that the one before left open is lost with it."""
        replica = self.rng.choice(self.replicas)
        self._owner = await _patiently(lambda: replica.claim(self.task_id))

    async def ask_for_a_call(self, *entries: ledger_pb2.NewEntry) -> bool:
        """Reserves, in a commit with these facts."""
        wanted = reserve(
            step=self.step + 1,
            attempt=self.attempt,
            input_tokens=self.rng.randint(20, 200),
            output=self.rng.randint(50, 400),
            least=self.rng.randint(1, 50),
        )
        response = await self.commit(*entries, reserve=wanted)
        if response.reserve.HasField("denied"):
            self.met[response.reserve.denied.reason] += 1
            return False
        self.met["granted"] += 1
        self.met["clamped"] += response.reserve.granted.max_output_tokens < wanted.max_output_tokens
        self.granted = response.reserve.granted.reserved_tokens
        self.step += 1
        return True

    async def end_the_call(self) -> None:
        """In one of all the ways in which calls end."""
        ways: dict[Callable[[], Awaitable[None]], int] = {
            self.is_answered: 8,
            self.is_answered_as_the_next_begins: 4,
            self.fails_and_is_tried_again: 3,
            self.is_lost_with_its_claim: 2,
            self.is_taken_over: 2,
            self.is_given_back: 1,
            self.is_lost_while_the_answer_comes: 2,
        }
        [way] = self.rng.choices(list(ways), list(ways.values()))
        self.met[way.__name__] += 1
        await way()

    async def is_answered(self) -> None:
        await self.commit(self._answer())
        self.attempt = 1

    async def is_answered_as_the_next_begins(self) -> None:
        response, self.attempt = self._answer(), 1
        if await self.ask_for_a_call(response):
            await self.end_the_call()

    async def fails_and_is_tried_again(self) -> None:
        failure = ledger_pb2.ModelFailure(
            attempt_number=self.attempt,
            error_class="OVERLOADED",
            retryable=True,
            usage=task_pb2.TokenUsage(input_tokens=self.rng.choice([0, 20])),
        )
        await self.commit(entry(self.step, model_failure=failure))
        self._try_again()

    async def is_lost_with_its_claim(self) -> None:
        """A coordinator, or two of them, say that the claim is gone, and how far the answer had come."""
        heard = self.rng.randint(0, 300)
        await asyncio.gather(*[self._requeue(self.owner, heard) for _ in range(2)])
        await self.claim()
        self._try_again()

    async def is_taken_over(self) -> None:
        """The next owner opens while the former one still believes; what that one says later is refused."""
        former = self.owner
        late_answer = former.request(self._answer())
        await self.claim()
        assert not await self._was_accepted(former, late_answer), "a former owner was heard"
        if self.surprises:
            await self._says_later_what_it_used(former)
        self._try_again()

    async def is_given_back(self) -> None:
        move = pb.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="WORKER_DRAINED")
        await self.commit(transition=move)
        await self.claim()
        self._try_again()

    async def is_lost_while_the_answer_comes(self) -> None:
        """Either is first, and then it is the only one that counts."""
        owner, request = self.owner, self.owner.request(self._answer())
        coming = asyncio.create_task(self._was_accepted(owner, request))
        await asyncio.sleep(self.rng.uniform(0, MAX_SECONDS_OF_A_CALL))
        await self._requeue(owner, self.rng.randint(0, 50))
        answered = await coming
        self.met["the answer was first" if answered else "the loss was first"] += 1
        await self.claim()
        if answered:
            self.attempt = 1
        else:
            self._try_again()

    async def commit(self, *entries: ledger_pb2.NewEntry, **fields: Any) -> pb.CommitResponse:
        """By the owner, through any replica, and now and then through two of them at once."""
        owner, request = self.owner, self.owner.request(*entries, **fields)
        first, second = (self.rng.choice(self.replicas) for _ in range(2))
        if self.rng.random() < 0.2:
            self.met["sent twice"] += 1
            response, again = await asyncio.gather(_send(owner, request, first), _send(owner, request, second))
            assert response == again, "a repeat is answered as the first time"
            return response
        return await _send(owner, request, first)

    def _answer(self) -> ledger_pb2.NewEntry:
        """What the model used; with `surprises` it is now and then more than was set aside."""
        tokens = self.rng.randint(1, self.granted)
        if self.surprises and self.rng.random() < 0.1:
            self.met["overrun"] += 1
            tokens = self.granted + self.rng.randint(1, 60)
        return answer(step=self.step, attempt=self.attempt, tokens=tokens)

    def _try_again(self) -> None:
        self.step, self.attempt = self.step - 1, self.attempt + 1

    async def _says_later_what_it_used(self, former: Owner) -> None:
        """For the bill alone. What the estimate gave back may be another's by now."""
        self.met["reported"] += 1
        report = pb.ReportUsageRequest(
            token=former.token,
            step=self.step,
            attempt_number=self.attempt,
            usage=task_pb2.TokenUsage(output_tokens=self.rng.randint(1, self.granted)),
        )
        replicas = self.rng.choices(self.replicas, k=2)
        await asyncio.gather(*[_patiently(partial(each.stub.ReportUsage, report, timeout=60.0)) for each in replicas])

    async def _requeue(self, owner: Owner, heard: int) -> None:
        replica = self.rng.choice(self.replicas)
        await _patiently(lambda: replica.requeue(owner, "CLAIM_LOST", output_tokens=heard))

    async def _was_accepted(self, owner: Owner, request: pb.CommitRequest) -> bool:
        try:
            await _send(owner, request, self.rng.choice(self.replicas))
        except StaleEpoch:
            return False
        return True


async def _send(owner: Owner, request: pb.CommitRequest, replica: Checkpoint) -> pb.CommitResponse:
    response: pb.CommitResponse = await _patiently(lambda: replica.stub.Commit(request, timeout=PATIENCE_SECONDS))
    owner.next_number, owner.known_sequence = request.commit_number + 1, response.sequence
    return response


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """The same again for as long as the ledger says that it may be."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await call()
            except TryLater:
                await asyncio.sleep(0.05)
