"""What one watcher is owed: every page of entries, and as much live text as it can take."""

from __future__ import annotations

import asyncio

import pytest

from services.gateway.pending_text import MAX_PENDING_BLOCKS, MAX_PENDING_CHARACTERS
from services.gateway.watch import Mailbox
from tenure.domain.errors import Unavailable
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, live_pb2


def page(sequence: int) -> ledger.WatchEntriesResponse:
    return ledger.WatchEntriesResponse(entries=[ledger_pb2.Entry(sequence=sequence)])


def delta(text: str, *, offset: int = 0, step: int = 1, epoch: int = 7, block: int = 0) -> live_pb2.Delta:
    return live_pb2.Delta(epoch=epoch, step=step, attempt_number=1, block=block, offset=offset, text=text)


async def test_the_next_page_waits_until_the_last_was_taken() -> None:
    box = Mailbox()
    await box.put_page(page(1))
    waiting = asyncio.ensure_future(box.put_page(page(2)))
    assert await box.wait(1.0)
    assert not waiting.done()
    assert box.take_page() == page(1)
    await waiting
    assert await box.wait(1.0)
    assert box.take_page() == page(2)
    assert box.take_page() is None


async def test_pieces_that_follow_each_other_become_one() -> None:
    box = Mailbox()
    for piece in (delta("ab"), delta("cd", offset=2), delta("x", block=1), delta("ef", offset=4)):
        box.add_text(piece)
    assert [(one.block, one.offset, one.text) for one in box.take_text()] == [(0, 0, "abcdef"), (1, 0, "x")]
    assert box.take_text() == []


async def test_watchers_that_share_pieces_change_none() -> None:
    boxes, pieces = (Mailbox(), Mailbox()), (delta("ab"), delta("cd", offset=2))
    for piece in pieces:
        for box in boxes:
            box.add_text(piece)
    assert [[one.text for one in box.take_text()] for box in boxes] == [["abcd"], ["abcd"]]
    assert [piece.text for piece in pieces] == ["ab", "cd"]


async def test_text_beyond_the_bound_pushes_the_oldest_out() -> None:
    box = Mailbox()
    for step in (1, 2, 3):
        box.add_text(delta("x" * (MAX_PENDING_CHARACTERS // 2), step=step))
    assert [one.step for one in box.take_text()] == [2, 3]


async def test_one_block_without_end_stays_within_the_bound() -> None:
    """A hostile worker's text follows on for ever, while the watcher reads nothing."""
    box, piece = Mailbox(), "x" * 65_536
    for number in range(20):
        box.add_text(delta(piece, offset=number * len(piece)))
    kept = box.take_text()
    assert sum(len(one.text) for one in kept) <= MAX_PENDING_CHARACTERS
    assert kept[-1].offset + len(kept[-1].text) == 20 * len(piece)


async def test_blocks_without_end_stay_within_the_bound() -> None:
    box = Mailbox()
    for block in range(3 * MAX_PENDING_BLOCKS):
        box.add_text(delta("x", block=block))
    assert [one.block for one in box.take_text()] == list(range(2 * MAX_PENDING_BLOCKS, 3 * MAX_PENDING_BLOCKS))


async def test_text_of_a_committed_or_fenced_step_is_not_sent() -> None:
    box = Mailbox()
    for epoch, step in ((7, 1), (7, 2), (8, 2), (8, 3)):
        box.add_text(delta("x", epoch=epoch, step=step))
    box.discard_text(8, 2)
    assert [(one.epoch, one.step) for one in box.take_text()] == [(8, 3)]


async def test_entries_precede_the_final_error() -> None:
    box = Mailbox()
    await box.put_page(page(1))
    box.fail(Unavailable("the first"))
    box.fail(Unavailable("the second"))
    assert await box.wait(1.0)
    assert box.take_page() == page(1)
    with pytest.raises(Unavailable, match="the first"):
        await box.wait(1.0)


async def test_empty_interval_is_reported() -> None:
    assert not await Mailbox().wait(0.01)
