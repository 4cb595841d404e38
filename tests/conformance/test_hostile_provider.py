"""Answers of a hostile provider through the real client: an answer that can be kept, or a failure that says what came.

TENURE_HOSTILE_ANSWERS says how many are tried in each of the two ways. Hypothesis shrinks what fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from devstack.simulator.request_checks import check_create
from devstack.simulator.simulator import ModelSimulator
from services.worker.claim_ledger import size_bytes
from services.worker.model_attempt import billed
from services.worker.model_step import answer_entries, failure_entry
from tenure.domain import entries as facts
from tenure.domain.conversation import with_own_ids
from tenure.domain.fold import ResumePoint
from tenure.domain.next_action import CallModel, next_action
from tenure.domain.retry import FailureClass
from tenure.domain.states import TaskState
from tenure.domain.task import TaskSpec
from tenure.domain.tool_arguments import strict_json
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.model_providers.chat_messages import without_chat_parts
from tenure.model_providers.client import MAX_FAILURE_CHARACTERS, ModelCall, ModelCallFailed, ModelRequest
from tenure.model_providers.stream import MAX_CONTENT_BYTES, MAX_TOKENS
from tenure.v1 import ledger_pb2, live_pb2
from tenure.wire.checkpoint_service import is_one_portion
from tenure.wire.ledger import entry_to_domain, new_entry
from tenure.wire.task import usage_to_wire
from tests.support.hostile_answers import hostile_answer
from tests.support.hostile_chat_answers import hostile_chat_answer
from tests.support.model_clients import model_client

ANSWERS = int(os.environ.get("TENURE_HOSTILE_ANSWERS", "1000"))
ATTEMPT = facts.ModelAttempt(1, "sim-hostile", 1000, 4096, 5096)
FEW = 60
"""Those of `make test`."""

GOAL = "Do what is to be done."
MAX_MESSAGE_CHARACTERS = 10 * MAX_FAILURE_CHARACTERS
"""Escapes make a message longer."""

ANY_TIME = {
    FailureClass.BROKEN_STREAM,
    FailureClass.UNUSABLE_ANSWER,
    FailureClass.CONNECTION,
    FailureClass.TIMEOUT,
    FailureClass.SILENT,
    FailureClass.OVERLOADED,
    FailureClass.SERVER_ERROR,
    FailureClass.RATE_LIMITED,
}
"""What is to be tried again; everything else is the provider's word about the request."""


class HostileWorld:
    """A simulator and a client in one event loop."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.simulator = self.runner.run(ModelSimulator().start())
        self.client = self.runner.run(self.new_client())

    async def new_client(self) -> Any:
        return model_client(self.simulator.url)

    def ask(self, hostile: Any, model: str) -> Any:
        """(what came of the call, the call). The answer is taken by exactly this request."""

        def on_usage() -> None:
            usage_to_wire(call.usage)  # what is heard is sent to the coordinator

        call = ModelCall(on_text=self.show, on_usage=on_usage)
        request = ModelRequest(model, [{"role": "user", "content": GOAL}], 4096, attempt="task/1/1")
        self.simulator.answer_next(hostile)
        try:
            return self.runner.run(self.client.answer(request, call)), call
        except ModelCallFailed as failure:
            return failure, call

    def show(self, block: Any, text: Any) -> None:
        live_pb2.Delta(block=block, text=text).SerializeToString()

    def close(self) -> None:
        self.runner.run(self.client.__aexit__())
        self.runner.run(self.simulator.stop())
        self.runner.close()


@pytest.fixture(scope="module")
def world() -> Iterator[Any]:
    made = HostileWorld()
    yield made
    made.close()


def stored(own: Any) -> Iterator[Any]:
    """The facts as the next owner reads them: through their bytes."""
    for step, body in own:
        sent = ledger_pb2.NewEntry.FromString(new_entry(step, body).SerializeToString())
        yield entry_to_domain(ledger_pb2.Entry(step=sent.step, body=sent.body)).body


def resume_point(own: Any) -> Any:
    """A task whose first answer this is, with an outcome for each of its calls, folded."""
    outcomes = [facts.ToolOutcome(one.call_id, Outcome(OutcomeStatus.SUCCEEDED, "ok")) for one in own[1:]]
    history = [
        (0, facts.Submitted(TaskSpec(goal=GOAL), "r")),
        (0, facts.Transition(TaskState.QUEUED, "SUBMITTED", "")),
        (0, facts.Transition(TaskState.RUNNING, "OPENED", "", from_state=TaskState.QUEUED)),
        (1, ATTEMPT),
        *((1, body) for body in [*own, *outcomes]),
    ]
    point = ResumePoint()
    for sequence, (step, body) in enumerate(history, start=1):
        point.apply(facts.Entry(sequence, step, body))
    return point


def check_answer(answer: Any) -> str:
    """It can be stored, read, sent again, and forked or continued: the provider would take the next request."""
    assert answer.stop_reason
    answer = replace(answer, usage=billed(ATTEMPT, answer.usage), latency_seconds=0.5)
    assert 0 < answer.usage.total <= 4 * MAX_TOKENS
    answer = replace(answer, content=with_own_ids(answer.content, [], 1))
    own = answer_entries(1, ATTEMPT, answer)
    if not is_one_portion(own, size_bytes):
        return "an answer too large for one commit"
    read = list(stored(own))
    assert read == [body for _, body in own]
    point = resume_point(read)
    move = next_action(point)
    point.apply(facts.Entry(point.sequence + 1, 0, facts.UserMessage("Go on.")))  # as a fork does
    point.apply(facts.Entry(point.sequence + 1, point.step + 1, ATTEMPT))
    body = {"model": "m", "max_tokens": 10, "messages": without_chat_parts(point.messages)}
    check_create(strict_json(json.dumps(body, ensure_ascii=False, allow_nan=False).encode().decode()))
    if isinstance(move, CallModel):
        assert point.messages[-1]["role"] == "user"
    return f"an answer, then {type(move).__name__}"


def check_failure(failure: Any, call: Any) -> Any:
    fact = failure_entry(ATTEMPT, failure)
    assert list(stored([(1, fact)])) == [fact]
    assert 0 <= fact.usage.total <= 4 * MAX_TOKENS + MAX_CONTENT_BYTES
    assert 0 < len(failure.message) <= MAX_MESSAGE_CHARACTERS
    assert all(one.isprintable() or one == "\n" for one in failure.message)
    assert len(failure.request_id) <= 200 * 10
    if call.was_taken and failure.status_code < 400:
        assert failure.error_class in ANY_TIME, failure
    assert failure.retryable or failure.status_code, f"no word of the provider says so: {failure}"
    return str(failure.error_class)


@pytest.fixture
def try_answer(world: Any, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Tries an answer, and counts what they come to."""
    caplog.set_level(logging.ERROR, logger="services.worker")
    counts: Counter[str] = Counter()

    def try_one(hostile: Any, model: str) -> None:
        outcome, call = world.ask(hostile, model)
        failed = isinstance(outcome, ModelCallFailed)
        counts[check_failure(outcome, call) if failed else check_answer(outcome)] += 1
        assert not caplog.records, caplog.records[0].getMessage()

    yield try_one
    print(*(f"{count:>7} {what}" for what, count in counts.most_common()), sep="\n")  # noqa: T201  with -s or a failure


VENDORS = [("sim-hello", hostile_answer), ("openai/sim-hello", hostile_chat_answer)]
each_vendor = pytest.mark.parametrize(("model", "hostile_answer_of"), VENDORS, ids=["anthropic", "openai"])


@each_vendor
@pytest.mark.parametrize("examples", [FEW, pytest.param(ANSWERS, marks=pytest.mark.faults)])
def test_each_hostile_answer_is_kept_or_fails_typed(
    try_answer: Any, model: str, hostile_answer_of: Any, examples: int
) -> None:
    @settings(
        max_examples=examples,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False, note_method_calls=False))
    def try_one(random: Any) -> None:
        try_answer(hostile_answer_of(random), model)

    try_one()


@each_vendor
@pytest.mark.faults
def test_seeded_answers_too(try_answer: Any, model: str, hostile_answer_of: Any) -> None:
    """A seeded stream of chance goes where hypothesis' short ones seldom go: long answers with several changes."""
    for number in range(ANSWERS):
        hostile = hostile_answer_of(Random(number))
        try:
            try_answer(hostile, model)
        except Exception as error:
            error.add_note(f"seed {number}: {hostile.changes}; {hostile.body[:2000]!r}")
            raise
