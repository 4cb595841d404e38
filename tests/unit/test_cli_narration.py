"""The lines of `tenure watch`, on a terminal and into a pipe."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tenure.cli.entry_lines import describe
from tenure.cli.narration import Narrator
from tenure.cli.watch import Screen
from tenure.cli.watch_state import WatchedTask
from tenure.v1 import ledger_pb2, live_pb2, task_pb2, tool_pb2
from tenure.wire.common import duration
from tests.unit.cli_entries import SECOND, Ledger, piece
from tests.unit.golden_files import compare_with_golden


class Narration:
    """The lines of a watched task on a console of so many columns: `printed`."""

    def __init__(self, *, terminal: bool, width: int = 80, verbose: bool = False) -> None:
        self._written = io.StringIO()
        console = Console(file=self._written, force_terminal=terminal, width=width, highlight=False, color_system=None)
        self.task = WatchedTask()
        self._narrator = Narrator(self.task, console, is_plain=not terminal, is_verbose=verbose)
        self._screen = Screen(console, "01a2007f-3602-74e0-8abc-b7091d7852f6", self.task)

    def show(self, *events: Any) -> Narration:
        """Entries, pieces of live text, and the task at its end."""
        for event in events:
            match event:
                case live_pb2.Delta():
                    self._screen.say(self._narrator.tell_text(event))
                case task_pb2.Task():
                    self._screen.say(self._narrator.ending(event))
                case _:
                    self._screen.say(self._narrator.tell(event))
        return self

    @property
    def printed(self) -> str:
        return self._written.getvalue()


def ended(**fields: Any) -> task_pb2.Task:
    task = task_pb2.Task(step=2, usage=task_pb2.TokenUsage(input_tokens=100, output_tokens=20), **fields)
    task.create_time.FromSeconds(1_800_000_000)
    task.end_time.FromSeconds(1_800_000_041)
    return task


def stories() -> dict[str, list[Any]]:
    """What can happen to a task, each from its beginning."""
    ledger = Ledger()
    begun = [ledger.queued(), ledger.opened(), ledger.attempt(1)]
    usage = tool_pb2.ProgramUsage(wall_time=duration(0.5), cpu_time=duration(0.25), peak_memory_bytes=12 << 20)
    failure = ledger_pb2.ControlFailure(error_class="ConnectionError", message="no route", retryable=True)
    counted = ledger_pb2.ControlStep(name="count", result_json='{"rows":3}', duration=duration(1.5))
    failed_step = ledger_pb2.ControlStep(name="notify", failure=failure, duration=duration(0.2))
    model_failure = ledger_pb2.ModelFailure(
        attempt_number=1, error_class="RATE_LIMITED", status_code=429, message="slow down", retry_after=duration(7)
    )
    lost = ledger_pb2.AttemptLost(attempt_number=1, usage=task_pb2.TokenUsage(input_tokens=900, output_tokens=12))
    outliving = ledger_pb2.ModelAttempt(attempt_number=1, model="m", outlives_worker=True)
    doubt = {"reason": "TOOL_IN_DOUBT", "message": "the effect of call 1.0 is unknown"}
    tools = ledger_pb2.ToolsDefined(tools=[tool_pb2.ToolDefinition(name="read_file")], unknown_names=["raed_file", "x"])
    second = [ledger.lost(), ledger.opened("worker-2", SECOND)]
    return {
        "a step": [*begun, ledger.answer(1, "I begin.")],
        "a call": [
            ledger.intent("1.0", "web_search", query="prices"),
            ledger.outcome("1.0", "one\ntwo\nthree"),
        ],
        "a program with its usage": [
            ledger.intent("1.0", "execute_python", code="x"),
            ledger.outcome("1.0", "1", usage=usage),
        ],
        "a failed call": [
            ledger.intent("1.0", "execute_python", code="x"),
            ledger.outcome("1.0", "Traceback", status="FAILED", detail="OUT_OF_MEMORY"),
        ],
        "steps of a function": [
            ledger.entry(1, control_step=counted),
            ledger.entry(2, control_step=failed_step),
            ledger.entry(control_failure=failure),
        ],
        "long text": [ledger.answer(1, "word " * 40)],
        "a lease that expired": [*begun, ledger.expired()],
        "a takeover": [*begun, piece("I was sayi", 0), ledger.entry(1, attempt_lost=lost), *second],
        "a new attempt": [*begun, piece("I was sayi", 0), piece("Anew", 0, attempt=2)],
        "text that became an answer": [
            *begun,
            piece("All of it", 0),
            ledger.answer(1, "All of it."),
            ledger.attempt(2),
            piece("Next", 0, step=2),
        ],
        "a joined call": [
            *begun[:2],
            ledger.entry(1, model_attempt=outliving),
            piece("I was sayi", 0),
            *second,
            piece("I was saying it", 0, epoch=SECOND),
            ledger.answer(1, "I was saying it"),
        ],
        "a failed model call": [ledger.entry(4, model_failure=model_failure), ledger.attempt(4, number=2)],
        "a wait": [*begun, ledger.move("WAITING_USER", "RUNNING", **doubt)],
        "a message before the end": [
            ledger.answer(1, "It is done.", "end_turn"),
            ledger.entry(1, user_message=ledger_pb2.UserMessage(text="one more thing")),
        ],
        "success": [
            *begun,
            ledger.answer(2, "**It** is done.", "end_turn"),
            ledger.move("SUCCEEDED", "RUNNING", result="**It** is done.", reason="FINAL_ANSWER"),
            ended(state="TASK_STATE_SUCCEEDED", result="**It** is done."),
        ],
        "the end of a tree": [
            *begun,
            ended(
                state="TASK_STATE_SUCCEEDED",
                used_nano_usd=10_000_000,
                budget=task_pb2.BudgetStatus(used_tokens=9_000, max_tokens=50_000, used_nano_usd=840_000_000),
            ),
        ],
        "an end without success": [
            *begun,
            *second,
            ended(state="TASK_STATE_COST_EXCEEDED", reason="TOKEN_LIMIT", message="the cap is reached", result="Half."),
        ],
        "an entry of an unknown kind": [ledger.entry()],
        "unknown tools": [ledger.entry(tools_defined=tools)],
    }


def narrated(events: Sequence[Any], **options: Any) -> str:
    """The lines, without the time of day: it is that of this machine's zone."""
    return re.sub(r"^\d\d:\d\d:\d\d", "hh:mm:ss", Narration(**options).show(*events).printed, flags=re.MULTILINE)


def test_narration_is_the_golden_file() -> None:
    """On a terminal and with -v, where they differ from a pipe."""
    texts = {}
    for story, events in stories().items():
        texts[story] = narrated(events, terminal=False)
        for title, options in (
            ("on a terminal", {"terminal": True}),
            ("with -v", {"terminal": False, "verbose": True}),
        ):
            if (text := narrated(events, **options)) != texts[story]:
                texts[f"{story}, {title}"] = text
    compare_with_golden("narration.txt", texts)


def test_lines_fit_the_terminal() -> None:
    ledger = Ledger()
    shown = Narration(terminal=True, width=60).show(ledger.intent("1.0", "write_file", content="long " * 100))
    shown.show(ledger.outcome("1.0", "word " * 100), ledger.answer(1, "word " * 40))
    assert all(len(line) <= 60 for line in shown.printed.splitlines())


def test_the_model_step_of_a_function_is_shown_with_v_only() -> None:
    """The answer before it shows the same, for people."""
    ledger = Ledger()
    recorded = ledger_pb2.ControlStep(name="shop: model", result_json='{"kind":"response"}', duration=duration(1.5))
    for verbose in (False, True):
        narration = Narration(terminal=False, verbose=verbose)
        narration.task.runs_function = True
        narration.show(ledger.answer(1, "I refund it."), ledger.entry(1, control_step=recorded))
        assert "I refund it." in narration.printed
        assert ('{"kind":"response"}' in narration.printed) is verbose


def test_calls_of_a_python_agent_have_the_number_of_their_step() -> None:
    ledger = Ledger()
    narration = Narration(terminal=False)
    narration.task.runs_function = True
    narration.show(ledger.answer(1, "I refund it."), ledger.intent("2.0", "refund"), ledger.intent("2.1", "mail"))
    narration.show(ledger.outcome("2.0", "5"), ledger.outcome("2.1", "6"), ledger.answer(3, "Done."))
    assert re.findall(r"Step \d|→ \w+|✓ \w+", narration.printed) == [
        *("Step 1", "Step 2", "→ refund", "→ mail", "✓ refund", "✓ mail", "Step 3"),
    ]


def test_a_takeover_keeps_the_live_text_of_a_joined_call_only() -> None:
    events = stories()
    assert not Narration(terminal=False).show(*events["a takeover"]).task.live.text
    assert Narration(terminal=False).show(*events["a joined call"][:-1]).task.live.text == "I was saying it"


def test_unknown_tools_are_named() -> None:
    assert describe(stories()["unknown tools"][0]) == "read_file; no such tool: raed_file, x"
