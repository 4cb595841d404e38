"""Tests of your own agents: a real stack, a scripted model, crashes at named points, and time that a test moves.

    def test_refund(tenure):
        tenure.model.script([tool("append_record", file="books", line="tea"), "Done."])
        worker = tenure.worker()
        task = tenure.submit("Refund order 7", tools=["append_record"])
        worker.kill(at="after intent 1.0")
        tenure.worker()
        assert task.result().text == "Done."
        assert tenure.effects("append_record") == 1

docs/testing.md is the guide. `pip install 'tenure[testing]'` brings what it needs.

pytest_plugin.py   the fixture `tenure`
stack.py           Stack: the processes, started once
session.py         Tenure: what one test does with them
task.py            TaskHandle: a task, its model calls and what it did
worker.py          WorkerHandle: kill, freeze, drain, at a point
points.py          the named points of a worker's loop
gate.py            stops workers at points, and holds tasks until the test looks
script.py          the scripted model
durations.py       spans of time, such as 2h
errors.py          what goes wrong in a test
"""

from __future__ import annotations

from tenure.testing.errors import InvariantViolated, NotCleanedUp, PointNotReached
from tenure.testing.points import POINTS, UnknownPoint
from tenure.testing.script import ScriptError, broken_stream, error, tool, turn
from tenure.testing.session import Tenure
from tenure.testing.stack import Stack
from tenure.testing.task import TaskHandle, TaskModelCall, TaskResult
from tenure.testing.worker import WorkerHandle

__all__ = [
    "POINTS",
    "InvariantViolated",
    "NotCleanedUp",
    "PointNotReached",
    "ScriptError",
    "Stack",
    "TaskHandle",
    "TaskModelCall",
    "TaskResult",
    "Tenure",
    "UnknownPoint",
    "WorkerHandle",
    "broken_stream",
    "error",
    "tool",
    "turn",
]
