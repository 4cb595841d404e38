"""What agents and tools say, as `tenure get` and `tenure tasks wait` show it: as words, on whatever terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tenure.cli.context import Context
from tenure.cli.leases import _say
from tenure.cli.output import make_console
from tenure.cli.tasks import _say_ended, _show_task, result_shown
from tenure.v1 import lease_service_pb2, task_pb2

HOSTILE = "Go on?\x1b]0;title\x07\x1b[2J\x1b[1;1H\x9b32mSUCCEEDED [green]really[/green]"
SHOWN = "Go on?\\x1b]0;title\\x07\\x1b[2J\\x1b[1;1H\\x9b32mSUCCEEDED [green]really[/green]"


def task(**fields: object) -> task_pb2.Task:
    given: dict[str, object] = {"task_id": "0198aaaa-0000-7000-8000-000000000001", "reason": HOSTILE, **fields}
    return task_pb2.Task(message=HOSTILE, **given)  # type: ignore[arg-type]  # any of its fields


def test_get_shows_every_word_of_a_task_as_a_word() -> None:
    out = io.StringIO()
    wait = task_pb2.Wait(question=HOSTILE, context=HOSTILE, reference=HOSTILE, options=[HOSTILE], tool=HOSTILE)
    waiting = task(state=task_pb2.TASK_STATE_WAITING_USER, owner=HOSTILE, wait=wait)
    waiting.spec.goal = HOSTILE
    console = make_console()
    console.file, console.width = out, 400
    _show_task(Context("", "", False, Path(), console, {}), waiting, [])
    assert out.getvalue().count(SHOWN) == 9  # twice in the state
    assert all(one.isprintable() or one == "\n" for one in out.getvalue())


def test_wait_says_how_a_task_ended_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    _say_ended(task(state=task_pb2.TASK_STATE_FAILED))
    assert capsys.readouterr().err.startswith(f"FAILED ({SHOWN}): {SHOWN} · ")


def test_why_a_lease_ended_is_words() -> None:
    lease = lease_service_pb2.Lease(resource="r", holder="h", reason="TRANSFERRED", message=HOSTILE)
    context = Context("", "", False, Path(), make_console(), {})
    assert f"(TRANSFERRED: {SHOWN})" in _say(context, lease_service_pb2.LeaseEvent(held=lease))


def test_a_result_by_schema_is_words_too() -> None:
    out = io.StringIO()
    done = task(state=task_pb2.TASK_STATE_SUCCEEDED, result_json='{"name": "\x9b32m\u202e"}')
    Console(file=out, width=100).print(result_shown(done, is_plain=False))
    assert '"name": "\\x9b32m\\u202e"' in out.getvalue()
