"""What a request for a model call comes to, by the task's row: every state, every owner, every runner."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.models.ends import stopped_end
from services.models.rules import (
    ATTEMPT_SUPERSEDED,
    Attempt,
    BeginCall,
    CallIntent,
    EndedCall,
    GenerationRow,
    Here,
    JoinRun,
    Kind,
    ModelCallState,
    RelayCall,
    RowDecision,
    decide,
)
from tenure.domain.errors import StaleEpoch, TenureError, Unavailable, WrongState
from tenure.domain.fencing import Fence
from tenure.domain.retry import FailureClass
from tenure.v1 import model_service_pb2 as pb

OWN, OTHER = uuid4(), uuid4()
NOW = datetime.now(UTC)
FENCE = Fence(10, "claim")
END = stopped_end(1, FailureClass.INTERRUPTED)


def row(state: ModelCallState, runner_id: UUID | None = OTHER, *, alive: bool = False) -> GenerationRow:
    """The row of attempt 1 of step 2."""
    return GenerationRow(
        FENCE,
        Attempt(2, 1),
        state,
        runner_id,
        "10.0.0.7:8477",
        alive,
        begun_epoch=9,
        sent_at=NOW if state is not ModelCallState.ACCEPTED else None,
        ended=END if state is ModelCallState.FINISHED else None,
    )


def intent(
    kind: Kind = Kind.GENERATE, step: int = 2, *, epoch: int = 10, claim_id: str = "claim", waits: bool = False
) -> CallIntent:
    return CallIntent(kind, Fence(epoch, claim_id), Attempt(step, 1), None if waits else NOW)


def here(*, runs: bool = False, refusal: TenureError | None = None) -> Here:
    return Here(OWN, lambda: runs, lambda: refusal)


def failure_of(decision: RowDecision) -> str:
    assert isinstance(decision.verdict, EndedCall)
    return pb.GenerateResponse.FromString(decision.verdict.row.ended or b"").failure.error_class


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("state", ModelCallState)
@pytest.mark.parametrize(("epoch", "claim_id"), [(9, "claim"), (9, "other"), (10, "other")])
def test_a_stale_claim_changes_nothing(kind: Kind, state: ModelCallState, epoch: int, claim_id: str) -> None:
    for step in (1, 2, 3):
        decision = decide(row(state, OWN), intent(kind, step, epoch=epoch, claim_id=claim_id), here(runs=True))
        assert isinstance(decision.verdict, StaleEpoch)
        assert decision.written is None


@pytest.mark.parametrize("kind", Kind)
def test_an_earlier_attempt_of_the_same_owner_is_superseded(kind: Kind) -> None:
    decision = decide(row(ModelCallState.SENT, OWN), intent(kind, 1), here(runs=True))
    assert isinstance(decision.verdict, WrongState)
    assert decision.verdict.reason == ATTEMPT_SUPERSEDED
    assert decision.written is None


@pytest.mark.parametrize("state", ModelCallState)
@pytest.mark.parametrize("waits", [False, True])
def test_a_later_attempt_begins_here(state: ModelCallState, waits: bool) -> None:
    decision = decide(row(state, alive=True), intent(step=3, epoch=11, waits=waits), here())
    assert isinstance(decision.verdict, BeginCall)
    begun = decision.written
    assert begun == decision.verdict.row
    assert begun is not None
    assert (begun.fence, begun.attempt, begun.runner_id, begun.begun_epoch) == (
        Fence(11, "claim"),
        Attempt(3, 1),
        OWN,
        11,
    )
    assert begun.state is (ModelCallState.ACCEPTED if waits else ModelCallState.SENT)
    assert begun.sent_at == (None if waits else NOW)


def test_a_process_that_begins_no_calls_still_joins_and_answers() -> None:
    refusal = Unavailable("draining", reason="DRAINING")
    assert decide(row(ModelCallState.FINISHED), intent(step=3), here(refusal=refusal)).verdict is refusal
    assert decide(row(ModelCallState.ACCEPTED), intent(), here(refusal=refusal)).verdict is refusal
    for state, runs, expected in (
        (ModelCallState.SENT, True, JoinRun),
        (ModelCallState.FINISHED, False, EndedCall),
    ):
        assert isinstance(decide(row(state, OWN), intent(), here(runs=runs, refusal=refusal)).verdict, expected)


@pytest.mark.parametrize("kind", Kind)
def test_a_sent_call_is_lost_only_with_its_runner(kind: Kind) -> None:
    sent = row(ModelCallState.SENT)
    assert failure_of(decide(sent, intent(kind), here())) == "LOST"
    assert failure_of(decide(row(ModelCallState.SENT, OWN), intent(kind), here())) == "LOST"
    alive = decide(row(ModelCallState.SENT, alive=True), intent(kind), here())
    assert alive == RowDecision(RelayCall(OTHER, "10.0.0.7:8477"), None)
    assert isinstance(decide(row(ModelCallState.SENT, OWN), intent(kind), here(runs=True)).verdict, JoinRun)


def test_a_relayed_request_is_not_relayed_again() -> None:
    relayed = replace(intent(), was_relayed=True)
    for state in (ModelCallState.ACCEPTED, ModelCallState.SENT):
        assert isinstance(decide(row(state, alive=True), relayed, here()).verdict, Unavailable)


def test_a_write_whose_answer_was_lost_begins_the_call() -> None:
    own = replace(intent(), may_be_own=True)
    assert isinstance(decide(row(ModelCallState.SENT, OWN), own, here()).verdict, BeginCall)
    assert failure_of(decide(row(ModelCallState.SENT, OTHER), own, here())) == "LOST"
    assert isinstance(decide(row(ModelCallState.SENT, OWN), own, here(runs=True)).verdict, JoinRun)


def test_an_accepted_call_is_taken_over_or_never_sent() -> None:
    for runner_id in (OTHER, None, OWN):
        taken = decide(row(ModelCallState.ACCEPTED, runner_id), intent(), here()).verdict
        assert isinstance(taken, BeginCall)
        assert taken.joined
        assert taken.row.begun_epoch == 9
        assert failure_of(decide(row(ModelCallState.ACCEPTED, runner_id), intent(Kind.CANCEL), here())) == "INTERRUPTED"
    assert isinstance(decide(row(ModelCallState.ACCEPTED, alive=True), intent(), here()).verdict, RelayCall)


def test_a_cancelled_attempt_never_begins() -> None:
    cancelled = decide(row(ModelCallState.FINISHED), intent(Kind.CANCEL, 3), here())
    assert failure_of(cancelled) == "INTERRUPTED"
    assert cancelled.written is not None
    assert cancelled.written.begun_epoch == 0
    assert decide(cancelled.written, intent(step=3), here()) == RowDecision(EndedCall(cancelled.written), None)


def after_restore(step: int, reserved_epoch: int, kind: Kind = Kind.GENERATE) -> CallIntent:
    """A request of an owner whose ledger is older than the row, which has attempt 1 of step 2 begun under epoch 9."""
    return replace(intent(kind, step, epoch=20), reserved_epoch=reserved_epoch)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("state", ModelCallState)
@pytest.mark.parametrize("step", [1, 2])
def test_a_call_of_a_lost_future_answers_no_new_attempt(kind: Kind, state: ModelCallState, step: int) -> None:
    decision = decide(row(state, OWN, alive=True), after_restore(step, 20, kind), here(runs=True))
    assert decision.written is not None
    assert (decision.written.attempt, decision.written.fence.epoch) == (Attempt(step, 1), 20)
    if kind is Kind.GENERATE:
        assert isinstance(decision.verdict, BeginCall)
        assert not decision.verdict.joined
        assert decide(decision.written, after_restore(step, 20), here(runs=True)).verdict == JoinRun()
    else:
        assert failure_of(decision) == "INTERRUPTED"


def test_a_call_that_began_before_the_backup_is_joined() -> None:
    for reserved_epoch in (0, 8, 9):
        assert isinstance(
            decide(row(ModelCallState.FINISHED), after_restore(2, reserved_epoch), here()).verdict, EndedCall
        )


@pytest.mark.parametrize("kind", Kind)
def test_an_earlier_call_than_the_recorded_one_is_lost(kind: Kind) -> None:
    """Its end was overwritten in the future that the ledger lost, and a retry gets another number."""
    decision = decide(row(ModelCallState.FINISHED), after_restore(1, 8, kind), here())
    assert failure_of(decision) == "LOST"
    assert decision.written is not None
    assert (decision.written.attempt, decision.written.fence.epoch) == (Attempt(1, 1), 20)
    assert decision.written.begun_epoch == 8


rows = st.builds(
    lambda state, runner_id, alive: row(state, OTHER if state is ModelCallState.SENT else runner_id, alive=alive),
    st.sampled_from(ModelCallState),
    st.sampled_from((OWN, OTHER, None)),
    st.booleans(),
)
intents = st.builds(
    lambda kind, step, epoch, claim_id, waits: intent(kind, step, epoch=epoch, claim_id=claim_id, waits=waits),
    st.sampled_from(Kind),
    st.integers(1, 3),
    st.integers(9, 11),
    st.sampled_from(("claim", "other")),
    st.booleans(),
)


@given(rows, st.lists(st.tuples(intents, st.booleans()), max_size=12))
def test_no_sequence_of_requests_begins_an_attempt_twice(
    first: GenerationRow, requests: list[tuple[CallIntent, bool]]
) -> None:
    """Nor does a fence or an attempt go back, or a recorded end change. A later owner has all earlier attempts."""
    current, sent = first, {first.attempt} if first.state is not ModelCallState.ACCEPTED else set()
    for request, runs in requests:
        if request.fence.epoch > current.fence.epoch and request.attempt < current.attempt:
            continue  # only after a restore of the ledger
        begins_here = current.runner_id == OWN and runs
        verdict, written = decide(current, request, here(runs=begins_here))
        if isinstance(verdict, BeginCall) and verdict.row.state is ModelCallState.SENT:
            assert request.attempt not in sent
            sent.add(request.attempt)
        if written is None:
            continue
        assert (written.fence.epoch, written.attempt) >= (current.fence.epoch, first.attempt)
        assert written.attempt >= current.attempt
        if current.state is ModelCallState.FINISHED and written.attempt == current.attempt:
            assert (written.state, written.ended) == (current.state, current.ended)
        current = written
