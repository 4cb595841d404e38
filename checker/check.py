"""What a check is: a pure function of one task's history, or a sum over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from checker.history import TaskHistory

# What a check gives: a broken rule, said so that it can be looked up.


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken: its number ("I3"), the task ("" for none), and what was seen, where."""

    invariant: str
    task_id: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.task_id or '-'}: {self.message}"


@dataclass(frozen=True, slots=True)
class Check:
    """`find` gives a message for each violation of `invariant` in one task. `needs`: sources and flags of History."""

    invariant: str
    says: str
    needs: tuple[str, ...]
    find: Callable[[TaskHistory], Iterable[str]]


class Sum(Protocol):
    """What is known of many tasks together: a few words for each, however long their histories are."""

    def add(self, task: TaskHistory) -> None:
        """Takes a task in."""

    def violations(self) -> Iterable[Violation]:
        """What does not add up, once all tasks are in."""


@dataclass(frozen=True, slots=True)
class SumCheck:
    """A check across tasks; `begin` makes an empty sum."""

    invariant: str
    says: str
    needs: tuple[str, ...]
    begin: Callable[[], Sum]


# The one table of invariants: what must be true of every history, and why some of it is not this checker's to say.


@dataclass(frozen=True, slots=True)
class Invariant:
    """`elsewhere`: why no check of this table's number exists, and what answers for it instead; "": it is checked."""

    says: str
    elsewhere: str = ""


INVARIANTS: Final[dict[str, Invariant]] = {
    "I1": Invariant("Of two claims of a task, the later has the higher epoch."),
    "I2": Invariant("One claim holds a task at a time; its epoch is its key's own revision; it is opened once."),
    "I3": Invariant("In a task's ledger the epochs of accepted writes never go back."),
    "I4": Invariant("Every accepted write is the newest opened claim's, made while that claim held the task."),
    "I5": Invariant("Every accepted write names a claim that was made and opened; no owner's fact is without one."),
    "I6": Invariant("Nothing is refused as stale that was not."),
    "I7": Invariant("A task's sequences are 1, 2, 3 … without gap or repeat, and its row ends where they end."),
    "I8": Invariant("Steps never go back, and go up by one at a time."),
    "I9": Invariant("What was acknowledged is in the ledger, as it was sent."),
    "I10": Invariant("What is in the ledger was asked for by somebody."),
    "I11": Invariant("A repeated request does its work once, and is answered as the first time."),
    "I12": Invariant(
        "An effect that must not happen twice does not, unless somebody said that it had not; a call has one outcome."
    ),
    "I13": Invariant("No tool is called before its intent is committed, and it is called as the intent says."),
    "I14": Invariant("No call starts behind the tools' fence, and no effect begins unmarked."),
    "I15": Invariant("What the ledger says of a call is what the tools have on record."),
    "I16": Invariant("Every call has exactly one outcome before the model goes on, and before the task ends."),
    "I17": Invariant("What is used and set aside never passes the cap; each model attempt is settled once."),
    "I18": Invariant("The ledger counts what the provider billed."),
    "I19": Invariant("Every model call that the provider saw, and every effect outside, is on record."),
    "I20": Invariant("Every move between states is one of the table, from where the task stood."),
    "I21": Invariant(
        "An attempt ends once; nothing follows its end but the next attempt, which an operator asked for."
    ),
    "I22": Invariant("The result of an ended task never changes, unless a next attempt is begun."),
    "I23": Invariant(
        "After a cancel no model call begins and no task succeeds; after the end no tool call is taken or started."
    ),
    "I24": Invariant("A stream is the ledger: contiguous, equal, and ended by the end."),
    "I25": Invariant("A healthy installation tells its watchers of an end within 2 s."),
    "I26": Invariant("A client that has seen an entry never reads an older task afterwards."),
    "I27": Invariant("A request id names one task of its tenant."),
    "I28": Invariant("Nobody is given another tenant's tasks."),
    "I29": Invariant("Every claim is of the generation that etcd stood at, and generations never go back."),
    "I30": Invariant("When faults stop, tasks come to an end or wait, and claims go with them."),
    "I31": Invariant(
        "A task whose worker died is resumed in 2 s, in 10 s when it froze (99 of 100).",
        elsewhere="a figure, not a law: bench/ measures it on a machine of its own",
    ),
    "I32": Invariant("A takeover costs at most the one model call in flight; what was committed is never done again."),
    "I33": Invariant(
        "A sandbox leaves nothing behind: no process, no control group, no file.",
        elsewhere="it is a property of hosts, not of histories: the tests of the sandbox look at them",
    ),
    "I34": Invariant(
        "Wrong clocks change no decision.",
        elsewhere="it compares two runs: the tests of clocks make them, and verify each",
    ),
    "I35": Invariant(
        "A run of the suite has met the rare paths it is there for.",
        elsewhere="it is about the suite, not about a task: checker/coverage.py counts, the suite asserts",
    ),
    "I36": Invariant("A fork begins with what was said and done in another task, and counts none of it as its own."),
    "I37": Invariant("A wait is answered once, and nothing of a waiting task runs before its answer."),
    "I38": Invariant("Sub-agents are those of the call that spawned them, once, and each knows its parent."),
    "I39": Invariant("A parent goes on when its last sub-agent has ended, or is late; nobody is left behind."),
    "I40": Invariant("A word on a call in doubt is given once, while the task waits for it, and of that attempt."),
}
