"""What the measurement of model calls counts."""

from __future__ import annotations

from typing import Any

from bench.model_calls import ProviderRecord
from bench.streamed_agents import PIECES, STEPS, WatchedText, write_scenario
from devstack.simulator.scenario import load_scenario
from tenure.v1 import ledger_pb2, live_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api


def call(attempt: str, ending: str = "complete", tokens: int = 10) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "ending": ending,
        "input_tokens": tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
        "output_tokens": 2,
    }


def test_a_second_request_of_a_step_is_repeated() -> None:
    calls = [call("t/1/1", "abandoned"), call("t/1/2"), call("t/2/1"), call("u/1/1")]
    assert ProviderRecord.of(calls) == ProviderRecord(requests=4, repeated=1, left=1, billed=4 * 13)


def delta(offset: int, text: str, *, epoch: int = 1, attempt: int = 1) -> api.WatchTaskResponse:
    piece = live_pb2.Delta(epoch=epoch, step=1, attempt_number=attempt, offset=offset, text=text)
    return api.WatchTaskResponse(delta=piece)


def entry(body: ledger_pb2.EntryBody, *, epoch: int = 1) -> api.WatchTaskResponse:
    return api.WatchTaskResponse(entry=ledger_pb2.Entry(step=1, epoch=epoch, body=body))


TAKEOVER = ledger_pb2.EntryBody(transition=ledger_pb2.StateTransition(to_state=task_pb2.TASK_STATE_RUNNING))


def answer(attempt: int) -> ledger_pb2.EntryBody:
    return ledger_pb2.EntryBody(assistant_message=ledger_pb2.AssistantMessage(attempt_number=attempt))


def seen(*messages: api.WatchTaskResponse) -> WatchedText:
    watched = WatchedText()
    for message in messages:
        watched.see(message)
    return watched


def test_a_text_that_begins_again_after_a_takeover_is_counted() -> None:
    repeated = entry(answer(2), epoch=2)
    watched = seen(delta(0, "abc"), entry(TAKEOVER, epoch=2), delta(0, "ab", epoch=2, attempt=2), repeated)
    assert (watched.replaced, watched.holes, len(watched.pauses)) == (1, 0, 1)


def test_a_hole_in_a_text_is_counted() -> None:
    watched = seen(delta(0, "abc"), delta(5, "fgh"), entry(answer(1)))
    assert (watched.replaced, watched.holes, watched.pauses) == (0, 1, [])


def test_a_takeover_between_two_texts_is_no_pause_of_a_text() -> None:
    watched = seen(delta(0, "abc"), entry(answer(1)), entry(TAKEOVER, epoch=2))
    assert (watched.replaced, watched.holes, watched.pauses) == (0, 0, [])


def test_the_streamed_agents_have_a_scenario(tmp_path: Any) -> None:
    scenario = load_scenario(write_scenario(tmp_path, 5.0))
    turns = [scenario.turn(index) for index in range(STEPS)]
    assert [len(turn.calls) for turn in turns] == [1] * (STEPS - 1) + [0]
    assert {(turn.latency_ms, turn.deltas) for turn in turns} == {(5000, PIECES)}
