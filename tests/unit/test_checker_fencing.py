"""The checker notices every way in which a claim may be got round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checker import history as seen
from tenure.domain import entries as facts
from tenure.domain.fencing import Fence, compose_epoch
from tenure.domain.states import Reason, TaskState
from tests.unit.checker_faults import PARAMETERS, check_fault, entry, fault, first, record, renumber
from tests.unit.checker_history import Story, hash_of


def insert(story: Story, index: int, body: facts.Body, of: seen.Grant, actor: str) -> None:
    """Words that a claim wrote where it should not have."""
    like = story.entries[index]
    stamped = replace(like, body=body, body_hash=hash_of(body), epoch=of.epoch, claim_id=of.claim_id, actor=actor)
    story.entries.insert(index, stamped)
    renumber(story)


def a_number_comes_again(story: Story) -> seen.History:
    """etcd was restored and its generation was not raised."""
    again = replace(story.grants[0], claim_id="of-another-life", life=1)
    story.grants.append(again)
    history = story.history()
    generation_change = seen.GenerationChange(revision=1, generation=1, life=1)
    return replace(history, generations=(*(history.generations or ()), generation_change))


def a_claim_of_an_older_generation(story: Story) -> seen.History:
    """The second claim was made when etcd already had another generation."""
    raised = (seen.GenerationChange(revision=1, generation=1), seen.GenerationChange(revision=18, generation=2))
    return replace(story.history(), generations=raised)


def the_generation_goes_back(story: Story) -> seen.History:
    put = (seen.GenerationChange(revision=1, generation=2), seen.GenerationChange(revision=9, generation=1))
    return replace(story.history(), generations=put)


def a_claim_comes_back(story: Story) -> None:
    story.entries.pop()
    story.state = TaskState.RUNNING
    story.move(TaskState.QUEUED, Reason.WORKER_DRAINED)
    story.move(TaskState.RUNNING, Reason.OPENED)
    story.move(TaskState.SUCCEEDED, Reason.FINAL_ANSWER, result="It is done.")


def an_older_claim_opens(story: Story) -> None:
    """After the end of the newer one's work."""
    stale = story.grants[0]
    story.entries.pop()
    story.state = TaskState.RUNNING
    story.move(TaskState.QUEUED, Reason.WORKER_DRAINED)
    story.grants.append(story.grants.pop(0))
    story.move(TaskState.RUNNING, Reason.OPENED)
    story.grants.insert(0, story.grants.pop())
    assert story.entries[-1].epoch == stale.epoch


def a_stale_write(story: Story) -> None:
    """Between the new owner's Open and its first write."""
    insert(story, first(story, facts.ModelAttempt, 2), facts.UserMessage("late"), story.grants[0], "worker-1")


def a_write_of_one_who_was_put_back(story: Story) -> None:
    """While the task waits in the queue."""
    insert(story, first(story, facts.Transition, 3), facts.UserMessage("on"), story.grants[0], "worker-1")


def a_write_taken_as_the_holders(story: Story) -> None:
    insert(story, first(story, facts.ModelAttempt, 2), facts.UserMessage("late"), story.grants[1], "worker-1")


def a_commit(story: Story, fence: Fence, *bodies: bytes) -> None:
    named = f"c-{len(story.operations)}"
    story.operation(
        seen.Method.COMMIT, client="worker-1", fence=fence, request_id=named, body_hashes=bodies, sequence=9
    )


def a_stale_commit_stands_as_the_holders(story: Story) -> seen.History:
    """The ledger stamped it with its own fence, and both workers have one name."""
    stale = story.grants[0].fence
    own = [entry.body_hash for entry in story.entries if entry.fence == stale]
    a_commit(story, stale, *own)
    a_commit(story, stale, story.entries[first(story, facts.AssistantMessage, 1)].body_hash)
    return replace(story.history(), tasks=None, subscriptions=None)


def a_commit_of_a_claim_that_never_opened(story: Story) -> None:
    a_commit(story, Fence(story.holder.epoch, "of-another-life"))


def the_holder_is_refused(story: Story) -> None:
    holder = story.grants[0]
    story.refusals.append(
        replace(
            story.refusals[0],
            current_epoch=holder.epoch,
            refused_at=story.entries[first(story, facts.ModelAttempt)].recorded_at + 0.5,
        )
    )


def the_task_of_a_living_claim_is_taken(_story: Story) -> seen.History:
    """The report of an older claim's loss came late, and hit the newer one."""
    story = Story()
    story.submit()
    story.claim("worker-1")
    story.lose()
    story.claim("worker-2")
    story.move(TaskState.QUEUED, Reason.LEASE_EXPIRED, owned=False)
    story.refuse(story.holder)
    return replace(story.history(), settled=False, subscriptions=())


def etcd_never_had_it(story: Story) -> seen.History:
    history = story.history()
    return replace(history, grants=(history.grants or ())[1:], refusals=())


def another_number_is_opened(story: Story) -> seen.History:
    """It was taken from another answer of etcd than the claim's own."""
    made = story.grants[0]
    story.grants[0] = replace(made, created_revision=made.created_revision - 1, last_revision=0)
    return replace(story.history(), refusals=())


GHOST = compose_epoch(1, 900)
FAULTS = [
    fault("I1", "a number comes again", a_number_comes_again, "does not have the higher epoch"),
    fault("I2", "a claim outlives the next", record("grants", deleted_revision=99), "existed until revision 99"),
    fault("I2", "a claim is put again", record("grants", last_revision=16), "was put again"),
    fault("I2", "a claim comes back", a_claim_comes_back, "again, after entry"),
    fault("I2", "another number is opened", another_number_is_opened, "was created as 1.14"),
    fault("I2 I3 I4", "an older claim opens", an_older_claim_opens, "after epoch 1.21"),
    fault("I3 I4", "a stale write", a_stale_write, "but epoch 1.21 (claim claim-21) held the task"),
    fault("I4", "a write from the queue", a_write_of_one_who_was_put_back, "no claim held the task"),
    fault("I4", "a stale write in the holder's name", a_write_taken_as_the_holders, "while worker-2 held the task"),
    fault(
        "I4 I9",
        "a stale commit in the holder's name",
        a_stale_commit_stands_as_the_holders,
        "was accepted from worker-1",
        seen_by_clients=True,
    ),
    fault(
        "I4", "an Open without a fence", record("refusals", presented_epoch=GHOST), "its Open had not raised the fence"
    ),
    fault("I4", "the row has another fence", record("tasks", epoch=GHOST), "the fence in the task row is epoch 1.900"),
    fault("I5", "etcd never had it", etcd_never_had_it, "which etcd never had"),
    fault("I5", "etcd never had what is registered", record("tasks", granted=Fence(9, "x")), "has registered"),
    fault("I5", "an owner's fact without claim", entry(facts.ModelAttempt, epoch=0, claim_id=""), "only an owner may"),
    fault(
        "I5",
        "a commit of a claim never opened",
        a_commit_of_a_claim_that_never_opened,
        "never opened the task",
        seen_by_clients=True,
    ),
    fault("I6", "the holder is refused", the_holder_is_refused, "although that claim held the task"),
    fault("I6", "a living claim loses its task", the_task_of_a_living_claim_is_taken, "its key is still in etcd"),
    fault("I6", "refused by a claim never made", record("refusals", current_epoch=GHOST), "never had the claim"),
    fault("I6", "refused by a fence not raised", record("fences", epoch=compose_epoch(1, 20)), "is only at 1.20"),
    fault(
        "I6", "the tools refuse the holder", record("refusals", 1, presented_epoch=compose_epoch(1, 21)), "not closed"
    ),
    fault("I29", "a claim of an older generation", a_claim_of_an_older_generation, "but etcd had 2"),
    fault("I29", "the generation goes back", the_generation_goes_back, "decreased from 2 to 1"),
]


@pytest.mark.parametrize(PARAMETERS, FAULTS)
def test_bypassed_claim_is_reported(story: Any, change: Any, invariants: Any, says: Any, seen_by_clients: Any) -> None:
    check_fault(story, change, invariants, says, seen_by_clients)
