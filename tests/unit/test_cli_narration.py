"""What is told while a task is watched, on a terminal and into a pipe."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from tenure.cli.entry_lines import describe
from tenure.cli.narration import Narrator
from tenure.cli.watch import Screen
from tenure.cli.watch_state import WatchedTask
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.common import duration
from tests.unit.cli_entries import SECOND, Ledger, piece


class Teller:
    """Tells entries to a screen of so many columns; `seen` is what stands there."""

    def __init__(self, *, terminal: bool, width: int = 80, verbose: bool = False) -> None:
        self._written = io.StringIO()
        self.console = Console(
            file=self._written, force_terminal=terminal, width=width, highlight=False, color_system=None
        )
        self.task = WatchedTask()
        self.narrator = Narrator(self.task, self.console, is_plain=not terminal, is_verbose=verbose)
        self._screen = Screen(self.console, "01a2007f-3602-74e0-8abc-b7091d7852f6", self.task)

    def tell(self, *entries: Any) -> Any:
        for entry in entries:
            self._screen.say(self.narrator.tell(entry))
        return self

    def tell_text(self, delta: Any) -> Any:
        self._screen.say(self.narrator.tell_text(delta))
        return self

    def end(self, **fields: Any) -> Any:
        task = task_pb2.Task(step=2, usage=task_pb2.TokenUsage(input_tokens=100, output_tokens=20), **fields)
        task.create_time.FromSeconds(1_800_000_000)
        task.end_time.FromSeconds(1_800_000_041)
        self._screen.say(self.narrator.ending(task))
        return self

    @property
    def seen(self) -> Any:
        return self._written.getvalue()

    @property
    def lower_part(self) -> list[str]:
        """What the task does or waits for, as the moving part of the screen says."""
        return [what for what, _ in self._screen._activities()]


@pytest.fixture
def ledger() -> Any:
    return Ledger()


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def teller(request: pytest.FixtureRequest) -> Any:
    return Teller(terminal=request.param)


def test_a_step_has_its_text_its_tokens_and_its_time(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(1), ledger.answer(1, "I begin."))
    assert "worker-1 takes the task\n" in teller.seen
    assert "Step 1  1.2 s · 2,310 tokens in, 87 out" in teller.seen
    assert "  I begin.\n" in teller.seen


def test_a_call_is_shown_with_outcome_time_and_first_line(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.intent("1.0", "web_search", query="prices"), ledger.outcome("1.0", "one\ntwo\nthree"))
    assert '  ✓ web_search query="prices"  0.2 s\n    one (+2 lines)\n' in teller.seen


def test_a_program_is_told_with_what_it_used(teller: Any, ledger: Any) -> None:
    counted = tool_pb2.ProgramUsage(wall_time=duration(0.5), cpu_time=duration(0.25), peak_memory_bytes=12 << 20)
    for call_id, usage in (("1.0", counted), ("1.1", tool_pb2.ProgramUsage(wall_time=duration(0.5)))):
        response = ledger.outcome(call_id, "1", usage=usage)
        teller.tell(ledger.intent(call_id, "execute_python", code="x"), response)
    assert "0.2 s · 0.2 s CPU, 12 MiB\n" in teller.seen
    assert 'code="x"  0.2 s\n' in teller.seen


def test_printed_text_reaches_the_terminal_without_commands(teller: Any, ledger: Any) -> None:
    hostile = "\x1b]0;title\x07\x1b[2J"
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(1), ledger.answer(1, hostile))
    teller.tell(ledger.intent("1.0", "execute_python", code=hostile), ledger.outcome("1.0", hostile))
    assert "\x1b" not in teller.seen
    assert "\\x1b[2J" in teller.seen


def test_a_failed_call_says_how(teller: Any, ledger: Any) -> None:
    failed = ledger.outcome("1.0", "Traceback", status="FAILED", detail="OUT_OF_MEMORY")
    teller.tell(ledger.intent("1.0", "execute_python", code="x"), failed)
    assert '✗ execute_python code="x"  FAILED (OUT_OF_MEMORY)  0.2 s' in teller.seen


def test_a_functions_steps_are_told_with_what_they_came_to(teller: Any, ledger: Any) -> None:
    done = ledger_pb2.ControlStep(name="count", result_json='{"rows":3}', duration=duration(1.5))
    failure = ledger_pb2.ControlFailure(error_class="ConnectionError", message="no route", retryable=True)
    failed = ledger_pb2.ControlStep(name="notify", failure=failure, duration=duration(0.2))
    teller.tell(
        ledger.entry(1, control_step=done), ledger.entry(2, control_step=failed), ledger.entry(control_failure=failure)
    )
    assert '✓ step 1: count, 1.5 s: {"rows":3}' in teller.seen
    assert "✗ step 2: notify, 0.2 s, failed: ConnectionError, may be tried again" in teller.seen
    assert "✗ the function failed: ConnectionError, may be tried again: no route" in teller.seen


def test_the_recorded_result_of_a_functions_model_call_needs_v(ledger: Any) -> None:
    """The answer before it shows the same, for people."""
    recorded = ledger_pb2.ControlStep(name="shop: model", result_json='{"kind":"response"}', duration=duration(1.5))
    for verbose in (False, True):
        teller = Teller(terminal=False, verbose=verbose)
        teller.task.runs_function = True
        teller.tell(ledger.answer(1, "I refund it."), ledger.entry(1, control_step=recorded))
        assert "I refund it." in teller.seen
        assert ('{"kind":"response"}' in teller.seen) is verbose


def test_arguments_are_cut_to_the_width(ledger: Any) -> None:
    teller = Teller(terminal=True, width=60)
    teller.tell(ledger.intent("1.0", "write_file", content="long " * 100), ledger.outcome("1.0", "word " * 100))
    lines = teller.seen.splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].endswith("…  0.2 s")


def test_a_pipe_gets_a_line_at_a_calls_begin(ledger: Any) -> None:
    for terminal, expected in ((False, True), (True, False)):
        assert ("→ web_search" in Teller(terminal=terminal).tell(ledger.intent("1.0", "web_search")).seen) is expected


def test_text_is_wrapped_on_a_terminal_and_whole_in_a_pipe(ledger: Any) -> None:
    text = "word " * 40
    wrapped = Teller(terminal=True, width=60).tell(ledger.answer(1, text)).seen
    assert all(len(line) <= 60 for line in wrapped.splitlines())
    assert wrapped.count("word") == 40
    assert f"  {text.strip()}\n" in Teller(terminal=False, width=60).tell(ledger.answer(1, text)).seen


def test_a_takeover_says_who_for_whom_and_why(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(3), ledger.lost(), ledger.opened("worker-2", SECOND))
    assert "worker-1 no longer holds the task (WORKER_LOST)\n  the connection to worker-1 broke" in teller.seen
    assert "worker-2 takes over from worker-1 at step 3\n" in teller.seen


def test_a_verbose_narration_shows_the_epochs(ledger: Any) -> None:
    teller = Teller(terminal=False, verbose=True)
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(3), ledger.lost(), ledger.opened("worker-2", SECOND))
    assert "worker-1 takes the task · epoch 1.42\n" in teller.seen
    assert "worker-2 takes over from worker-1 at step 3 · epoch 1.42 → 1.97\n" in teller.seen


def test_unfinished_text_is_discarded_aloud_by_a_takeover(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(1)).tell_text(piece("I was sayi", 0))
    teller.tell(ledger.lost())
    assert "the unfinished text is discarded" in teller.seen
    assert not teller.task.live.text


def test_unfinished_text_is_discarded_aloud_by_a_new_attempt(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(1)).tell_text(piece("I was sayi", 0))
    teller.tell_text(piece("Anew", 0, attempt=2))
    assert teller.seen.count("the unfinished text is discarded") == 1
    assert teller.task.live.text == "Anew"


def test_text_that_became_an_answer_is_not_called_discarded(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(1)).tell_text(piece("All of it", 0))
    teller.tell(ledger.answer(1, "All of it."), ledger.attempt(2)).tell_text(piece("Next", 0, step=2))
    assert "discarded" not in teller.seen


def test_a_failed_model_call_is_shown_with_code_and_retry_time(teller: Any, ledger: Any) -> None:
    failure = ledger_pb2.ModelFailure(
        attempt_number=1, error_class="RATE_LIMITED", status_code=429, message="slow down", retry_after=duration(7)
    )
    teller.tell(ledger.entry(4, model_failure=failure), ledger.attempt(4, number=2))
    assert "step 4: the model call failed, RATE_LIMITED 429, retry after 7 s\n    slow down\n" in teller.seen
    assert "step 4: the model call is repeated, attempt 2" in teller.seen


def test_a_wait_is_told_with_its_reason(teller: Any, ledger: Any) -> None:
    doubt = {"reason": "TOOL_IN_DOUBT", "message": "nobody knows whether call 1.0 happened"}
    teller.tell(ledger.queued(), ledger.opened(), ledger.move("WAITING_USER", "RUNNING", **doubt))
    assert "WAITING_USER (TOOL_IN_DOUBT)\n  nobody knows whether call 1.0 happened" in teller.seen
    assert "tenure tools in-doubt, then tenure tools resolve" in teller.seen


def test_the_final_answer_is_told_once_as_the_result(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.queued(), ledger.opened(), ledger.answer(2, "It is done.", "end_turn"))
    teller.tell(ledger.move("SUCCEEDED", "RUNNING", result="It is done.", reason="FINAL_ANSWER"))
    teller.end(state="TASK_STATE_SUCCEEDED", result="It is done.")
    assert teller.seen.count("It is done.") == 1
    assert "✓ SUCCEEDED · 2 steps · 120 tokens · 41 s\n" in teller.seen


def test_the_words_before_another_message_are_not_held_back(teller: Any, ledger: Any) -> None:
    message = ledger_pb2.UserMessage(text="one more thing")
    teller.tell(ledger.answer(1, "It is done.", "end_turn"), ledger.entry(1, user_message=message))
    assert teller.seen.index("It is done.") < teller.seen.index("one more thing")


def test_an_end_without_success_says_why_and_what_there_was(teller: Any, ledger: Any) -> None:
    teller.tell(ledger.queued(), ledger.opened(), ledger.lost(), ledger.opened("worker-2", SECOND))
    teller.end(
        state="TASK_STATE_COST_EXCEEDED", reason="TOKEN_LIMIT", message="the cap is reached", result="Half of it."
    )
    assert (
        "✗ COST_EXCEEDED (TOKEN_LIMIT) · 2 steps · 120 tokens · 41 s · 1 takeover\n  the cap is reached" in teller.seen
    )
    assert "Half of it." in teller.seen


def test_a_pipe_gets_no_control_characters(ledger: Any) -> None:
    teller = Teller(terminal=False)
    teller.tell(ledger.queued(), ledger.opened(), ledger.answer(1, "**bold**", "end_turn"))
    teller.end(state="TASK_STATE_SUCCEEDED", result="**bold**")
    assert "\x1b" not in teller.seen
    assert "**bold**" in teller.seen


def test_an_entry_of_a_kind_that_is_not_known_is_passed_over(teller: Any, ledger: Any) -> None:
    assert teller.tell(ledger.entry()).seen == ""


def test_what_a_takeover_cost_is_told_after_the_takeover(teller: Any, ledger: Any) -> None:
    lost = ledger_pb2.AttemptLost(attempt_number=1, usage=task_pb2.TokenUsage(input_tokens=900, output_tokens=12))
    teller.tell(ledger.queued(), ledger.opened(), ledger.attempt(1)).tell_text(piece("I was sayi", 0))
    teller.tell(ledger.entry(1, attempt_lost=lost), ledger.lost())
    seen = ["no longer holds the task", "the unfinished text is discarded", "was lost, billed as 900 tokens in, 12 out"]
    places = [teller.seen.index(words) for words in seen]
    assert places == sorted(places)


def test_the_text_of_a_joined_call_is_kept_over_a_takeover(teller: Any, ledger: Any) -> None:
    outliving = ledger_pb2.ModelAttempt(attempt_number=1, model="m", outlives_worker=True)
    teller.tell(ledger.queued(), ledger.opened(), ledger.entry(1, model_attempt=outliving))
    teller.tell_text(piece("I was sayi", 0))
    teller.tell(ledger.lost(), ledger.opened("worker-2", SECOND))
    teller.tell_text(piece("I was saying it", 0, epoch=SECOND))
    teller.tell(ledger.answer(1, "I was saying it"))
    assert "discarded" not in teller.seen
    assert "lost, billed" not in teller.seen


def test_tools_that_there_are_not_are_told_of(teller: Any, ledger: Any) -> None:
    known = tool_pb2.ToolDefinition(name="read_file")
    all_there = ledger.entry(tools_defined=ledger_pb2.ToolsDefined(tools=[known]))
    two_missing = ledger.entry(tools_defined=ledger_pb2.ToolsDefined(tools=[known], unknown_names=["raed_file", "x"]))
    assert teller.tell(all_there).seen == ""
    assert teller.tell(two_missing).seen == "  ! no such tool: raed_file, x\n"
    assert describe(two_missing) == "read_file; no such tool: raed_file, x"


def test_a_task_without_a_worker_says_how_to_learn_why(ledger: Any) -> None:
    """Somebody may have to start a worker. A call of the lost one may still go on."""
    queued, lost = ledger.queued(), ledger.lost()
    for entry in (queued, lost):
        entry.record_time.FromSeconds(int(time.time()) - 60)
    teller = Teller(terminal=True).tell(queued)
    assert teller.lower_part == ["waits for a worker; tenure explain 01a2007f-3602 says why"]
    teller.tell(ledger.opened(), ledger.attempt(1), ledger.answer(1, "I pay."), ledger.intent("1.0", "pay", cents=5))
    assert teller.lower_part == ["pay cents=5"]
    teller.tell(lost)
    assert teller.lower_part == ["waits for a worker; tenure explain 01a2007f-3602 says why", "pay cents=5"]
