"""The checker notices what clients were promised and did not get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from checker.verify import verify
from tenure.domain import entries as facts
from tenure.domain.fencing import Fence
from tenure.domain.states import TaskState
from tests.unit.checker_faults import PARAMETERS, Change, check_fault, fault, joined, record
from tests.unit.checker_history import CLIENT, OFFSET, Story, cancelled, taken_over

Events = tuple[seen.Delivered, ...]


def stream(change: Callable[[Events], Events]) -> Change:
    """The whole stream was delivered otherwise."""

    def spoil(story: Story) -> seen.History:
        whole, *others = story.streams()
        return replace(story.history(), subscriptions=(replace(whole, delivered=change(whole.delivered)), *others))

    return spoil


def late(events: Events) -> Events:
    return (*events[:-1], replace(events[-1], received_monotonic=events[-1].received_monotonic + 3.0))


def an_older_read(story: Story) -> None:
    moment = story.now - OFFSET + 10
    read(
        story,
        client=CLIENT,
        sequence=5,
        state=TaskState.RUNNING,
        invoked_monotonic=moment,
        returned_monotonic=moment + 1,
    )


def read(story: Story, **fields: Any) -> None:
    """By a client that has seen nothing before."""
    story.operation(seen.Method.GET, **{"client": "client-9", **fields})


def read_as_failed(story: Story) -> None:
    read(story, state=TaskState.FAILED)


def read_with_another_result(story: Story) -> None:
    read(story, state=TaskState.SUCCEEDED, result="other")


def read_by_another_tenant(story: Story) -> None:
    read(story, tenant="other")


def read_beyond_the_end(story: Story) -> None:
    read(story, sequence=99)


def a_task_is_gone(story: Story) -> None:
    story.operation(seen.Method.SUBMIT, task_id="gone", request_id="request-9")


def a_cancel_is_forgotten(story: Story) -> None:
    story.operation(seen.Method.CANCEL)


def task_without_a_submit(story: Story) -> None:
    del story.operations[0]


def cancel_without_a_request(story: Story) -> None:
    story.operations = [each for each in story.operations if each.method is not seen.Method.CANCEL]


def message_twice(story: Story) -> None:
    end = story.entries.pop()
    for _ in range(2):
        story.entry(facts.UserMessage("hello", "words-1"), owned=False, actor=CLIENT)
    story.entries.append(replace(end, sequence=len(story.entries) + 1, recorded_at=story.now + 1))
    story.operations.pop()


def cancelled_twice(story: Story) -> None:
    cancel = next(each for each in story.entries if isinstance(each.body, facts.CancelRequest))
    story.entries.insert(cancel.sequence, cancel)
    story.entries = [replace(each, sequence=number) for number, each in enumerate(story.entries, 1)]


def commits(story: Story, *sequences: int, fence: Fence | None = None, also: tuple[bytes, ...] = ()) -> None:
    """The first owner's one commit with all that it wrote, acknowledged with each of these sequences."""
    own = story.grants[0].fence
    hashes = tuple(each.body_hash for each in story.entries if each.fence == own)
    for sequence in sequences:
        story.operation(
            seen.Method.COMMIT, request_id="c-1", fence=fence or own, body_hashes=(*hashes, *also), sequence=sequence
        )


def answered_with_another_sequence(story: Story) -> None:
    commits(story, 9, 10)


def an_acknowledged_commit_is_gone(story: Story) -> None:
    commits(story, 9, also=(b"gone",))


def entry_without_a_writer(story: Story) -> None:
    """An entry that was in no commit of its claim."""
    commits(story, 9)
    index = next(n for n, each in enumerate(story.entries) if isinstance(each.body, facts.ToolIntent))
    story.entries[index] = replace(story.entries[index], body_hash=b"phantom")
    first = story.operations[-1]
    hashes = tuple(each for each in first.body_hashes if each != story.entries[index].body_hash)
    story.operations[-1] = replace(first, body_hashes=tuple(h for h in hashes if h in _hashes(story)))


def _hashes(story: Story) -> set[bytes]:
    return {each.body_hash for each in story.entries}


def twin(story: Story, request_id: str) -> Story:
    other = Story(task_id=story.task_id[:-1] + "2", request_id=request_id)
    other.submit()
    other.claim()
    other.attempt(1)
    other.answer()
    other.end()
    return other


def one_request_became_two_tasks(story: Story) -> seen.History:
    other = twin(story, story.request_id)
    return replace(joined(story.history(), other.history()), operations=None)


def one_request_was_given_two_tasks(story: Story) -> seen.History:
    other = twin(story, "request-2")
    other.operations[0] = replace(other.operations[0], request_id=story.request_id)
    return joined(story.history(), other.history())


def another_payload_was_accepted(story: Story) -> None:
    story.operation(seen.Method.SUBMIT, request_id=story.request_id, request_hash=b"other")


def client_fault(*arguments: Any) -> Any:
    return fault(*arguments, seen_by_clients=True)


FAULTS = [
    client_fault("I9", "a task is gone", a_task_is_gone, "but the task does not exist"),
    client_fault("I9", "a cancel is forgotten", a_cancel_is_forgotten, "was acknowledged, but is not in the ledger"),
    client_fault("I9", "read beyond the end", read_beyond_the_end, "got sequence 99"),
    client_fault("I9", "a commit is gone", an_acknowledged_commit_is_gone, "its entries are not in the ledger"),
    client_fault("I10", "nobody submitted", task_without_a_submit, "no client has submitted the task"),
    client_fault("I10", "nobody cancelled", cancel_without_a_request, "has no cancel request of a client", cancelled),
    client_fault("I10", "written by nobody", entry_without_a_writer, "is not in any commit of epoch 1.15"),
    client_fault("I11", "words twice", message_twice, "repeats request words-1"),
    client_fault("I11", "cancelled twice", cancelled_twice, "repeats the cancel request", cancelled),
    client_fault(
        "I11", "another answer", answered_with_another_sequence, "was answered with sequence 9, and again with"
    ),
    client_fault("I22", "another end", read_as_failed, "had ended as FAILED, but the task is SUCCEEDED"),
    client_fault("I22", "another result", read_with_another_result, "read another result"),
    client_fault("I24", "a gap", stream(lambda events: events[:4] + events[5:]), "got entry 6, but entry 5 was next"),
    client_fault(
        "I24", "a repeat", stream(lambda events: events[:5] + events[4:]), "got entry 5, but entry 6 was next"
    ),
    client_fault("I24", "another entry", record("subscriptions", delivered=()), "was ended after entry 0"),
    client_fault(
        "I24",
        "something else",
        stream(lambda events: (*events[:4], replace(events[4], body_hash=b"other"), *events[5:])),
        "got another entry 5",
    ),
    client_fault("I24", "cut short", stream(lambda events: events[:-1]), "was ended after entry 19, before entry 20"),
    client_fault("I25", "told late", stream(late), "3.1 s after its commit"),
    client_fault("I26", "an older read", an_older_read, "at sequence 5 after it had seen sequence 20"),
    client_fault("I27", "two tasks", one_request_became_two_tasks, "it has the request id request-1"),
    client_fault("I27", "two answers", one_request_was_given_two_tasks, "got it for request request-1"),
    client_fault("I27", "two payloads", another_payload_was_accepted, "was accepted with two payloads"),
    client_fault("I28", "read by a stranger", read_by_another_tenant, "got a task of tenant default"),
    client_fault(
        "I28", "told to a stranger", record("subscriptions", tenant="other"), "got entries of a task of tenant"
    ),
]


def test_announced_gap_is_not_reported() -> None:
    response = stream(lambda events: (*events[:3], replace(events[7], resync=True), *events[8:]))(taken_over())
    assert response is not None
    assert verify(response) == []


@pytest.mark.parametrize(PARAMETERS, FAULTS)
def test_broken_promise_to_a_client_is_reported(
    story: Any, change: Any, invariants: Any, says: Any, seen_by_clients: Any
) -> None:
    check_fault(story, change, invariants, says, seen_by_clients)
