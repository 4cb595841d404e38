"""Tests of your own agents: a real stack, a scripted model, crashes at named points, and time that a test moves.

    def test_refund(tenure):
        tenure.model.script([tool("append_record", file="books", line="tea"), "Done."])
        worker = tenure.worker()
        task = tenure.submit("Refund order 7", tools=["append_record"])
        worker.kill(at="after intent 1.0")
        tenure.worker()
        assert task.result().text == "Done."
        assert tenure.effects("append_record") == 1

docs/testing.md is the guide. A name is imported at its first use, because pytest imports the plugin in every run where
Tenure is installed. `pip install 'tenure[testing]'` brings what it needs.

pytest_plugin.py   the fixture `tenure`
stack.py           Stack: the processes, started once
session.py         Tenure: what one test does with them
task.py            TaskHandle: a task, its model calls and what it did
worker.py          WorkerHandle: kill, freeze, drain, at a point
forks.py           starts workers as forks of a process that has imported their program
worker_program.py  what runs in it: the user's program up to its worker
answer_schemas.py  builds the schemas of model answers before the fork
points.py          the named points of a worker's loop
gate.py            stops workers at points, and holds tasks until the test looks
script.py          the scripted model
recording.py       Recording: the ledger of a real task as a file; Replay
durations.py       spans of time, such as 2h
errors.py          what goes wrong in a test
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tenure.testing.errors import InvariantViolated as InvariantViolated
    from tenure.testing.errors import NotCleanedUp as NotCleanedUp
    from tenure.testing.errors import PointNotReached as PointNotReached
    from tenure.testing.points import POINTS as POINTS
    from tenure.testing.points import UnknownPoint as UnknownPoint
    from tenure.testing.recording import Recording as Recording
    from tenure.testing.recording import Replay as Replay
    from tenure.testing.script import ScriptError as ScriptError
    from tenure.testing.script import broken_stream as broken_stream
    from tenure.testing.script import error as error
    from tenure.testing.script import tool as tool
    from tenure.testing.script import turn as turn
    from tenure.testing.session import Tenure as Tenure
    from tenure.testing.stack import Stack as Stack
    from tenure.testing.task import TaskHandle as TaskHandle
    from tenure.testing.task import TaskModelCall as TaskModelCall
    from tenure.testing.task import TaskResult as TaskResult
    from tenure.testing.worker import WorkerHandle as WorkerHandle

_NAMES: Final = {
    "errors": ("InvariantViolated", "NotCleanedUp", "PointNotReached"),
    "points": ("POINTS", "UnknownPoint"),
    "recording": ("Recording", "Replay"),
    "script": ("ScriptError", "broken_stream", "error", "tool", "turn"),
    "session": ("Tenure",),
    "stack": ("Stack",),
    "task": ("TaskHandle", "TaskModelCall", "TaskResult"),
    "worker": ("WorkerHandle",),
}
_MODULE_OF: Final = {name: f"tenure.testing.{module}" for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker takes the names that are imported above under their own name
    __all__ = sorted(_MODULE_OF)  # noqa: PLE0605  ruff wants a display of the list


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'tenure.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
