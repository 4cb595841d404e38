"""The types of checks and violations, and the table of invariants.

A check is a pure function of one task's history, or a sum over the histories of all tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from checker.history import TaskHistory


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant: its number ("I3"), the task id ("" for none), and a message that names the evidence."""

    invariant: str
    task_id: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.task_id or '-'}: {self.message}"


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one task. `find` yields a message for each violation of `invariant`.

    `needs`: the sources and flags of History without which the check cannot run.
    """

    invariant: str
    says: str
    needs: tuple[str, ...]
    find: Callable[[TaskHistory], Iterable[str]]


class Sum(Protocol):
    """The state of a check across tasks. It keeps only a few values per task, however long the histories are."""

    def add(self, task: TaskHistory) -> None:
        """Adds the history of one task."""

    def violations(self) -> Iterable[Violation]:
        """Returns the violations across tasks. Call it after all tasks were added."""


@dataclass(frozen=True, slots=True)
class SumCheck:
    """A check across tasks. `begin` creates an empty sum."""

    invariant: str
    says: str
    needs: tuple[str, ...]
    begin: Callable[[], Sum]


# The table of invariants, which must hold for every history.


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant. `elsewhere`: why the checker has no check for it and where it is tested instead; "": it has."""

    says: str
    elsewhere: str = ""


INVARIANTS: Final[dict[str, Invariant]] = {
    "I1": Invariant("Of two claims of a task, the later one has the higher epoch."),
    "I2": Invariant(
        "One claim holds a task at a time; its epoch is the create revision of its key; it is opened once."
    ),
    "I3": Invariant("The epochs of a task's accepted writes never decrease."),
    "I4": Invariant("Every accepted write comes from the newest opened claim, while that claim holds the task."),
    "I5": Invariant(
        "The claim of every accepted write exists and was opened; no entry of an owner is without a claim."
    ),
    "I6": Invariant("Every write that was refused as stale was stale."),
    "I7": Invariant("A task's sequences are 1, 2, 3 … without gap or repeat, and its row has the last one."),
    "I8": Invariant("Steps never decrease, and increase by one at a time."),
    "I9": Invariant("Every acknowledged write is in the ledger as it was sent."),
    "I10": Invariant("Every write in the ledger has a request of a client."),
    "I11": Invariant("A repeated request has one effect and gets the first answer."),
    "I12": Invariant(
        "An effect that must not happen twice happens once, unless a person resolved that it did not happen; "
        "a call has one outcome."
    ),
    "I13": Invariant("No tool is called before its intent is committed, and the call is equal to its intent."),
    "I14": Invariant(
        "No call starts under a claim older than the tool fence; no effect happens before STARTED is recorded."
    ),
    "I15": Invariant("The ledger's outcome of a call is that of the tool service's call record."),
    "I16": Invariant("Every call has exactly one outcome before the next model call and before the task ends."),
    "I17": Invariant("Used and reserved amounts never exceed the cap; each model attempt is settled once."),
    "I18": Invariant("The ledger's bill is equal to the model provider's."),
    "I19": Invariant("Every model call that the provider saw and every outside effect has a record."),
    "I20": Invariant("Every transition is in the table of transitions and starts from the task's state."),
    "I21": Invariant("An attempt ends once; only the next attempt, which an operator requested, follows its end."),
    "I22": Invariant("The result of an ended task never changes, unless the next attempt begins."),
    "I23": Invariant(
        "After a cancel request no model call begins and no task succeeds; "
        "after the end no tool call is accepted or started."
    ),
    "I24": Invariant("A stream has the ledger's entries without a gap, and ends with the task's end."),
    "I25": Invariant("A healthy installation sends the end of a task to its watchers within 2 s."),
    "I26": Invariant("A client that has seen an entry never reads an older state of the task afterwards."),
    "I27": Invariant("A request id names one task of its tenant."),
    "I28": Invariant("No client gets a task of another tenant."),
    "I29": Invariant("Every claim has the generation that etcd had at that moment, and generations never decrease."),
    "I30": Invariant("When faults stop, tasks end or wait, and their claims are deleted."),
    "I31": Invariant(
        "A task resumes within 2 s after its worker died, and within 10 s after it froze (99 of 100).",
        elsewhere="it is a measurement: bench/ measures it on a dedicated machine",
    ),
    "I32": Invariant("A takeover costs at most the one model call in flight; what was committed is never done again."),
    "I33": Invariant(
        "A sandbox leaves no process, no control group and no file.",
        elsewhere="it is a property of hosts, not of histories: the tests of the sandbox check it",
    ),
    "I34": Invariant(
        "Wrong clocks change no decision.",
        elsewhere="it compares two runs: the tests of clocks make both and verify each",
    ),
    "I36": Invariant("A fork begins with a copy of another task's history, and counts none of it as its own."),
    "I37": Invariant("A wait is answered once, and the call that waits does not run before its answer."),
    "I38": Invariant("A call spawns its sub-agents once, and each of them names its parent."),
    "I39": Invariant(
        "A parent continues when its last sub-agent has ended or timed out; no sub-agent outlives its call."
    ),
    "I40": Invariant(
        "A resolution of a call in doubt is given once, while the task waits for it, for that call attempt."
    ),
    "I41": Invariant("A task lists the outputs that its calls recorded, as its close-out found them."),
    "I42": Invariant("The receipts of a task are 1, 2, 3 … without gap, and each follows from its call record."),
    "I43": Invariant(
        "After the answer to a stop nothing that it covers is granted, reserved, accepted or started until its end."
    ),
    "I44": Invariant(
        "An effect with an effect key happens once in its period, unless it was undone, or a person resolved that it "
        "happens again."
    ),
    "I45": Invariant(
        "An undo makes the calls of its plan, in their order; an effect is undone once, and no call without effect is."
    ),
    "I46": Invariant("The calls that began under a rule with bounds never exceed its count or its limit."),
    "I47": Invariant("No task runs beside more tasks of its source than its `exclusive` or its `at_most` allows."),
}
