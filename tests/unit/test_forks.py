"""Where a history can be cut, and what of it a fork takes over."""

from __future__ import annotations

import pytest

from services.checkpoint.submit.fork_rules import (
    ForkPiece,
    choose_point,
    ends_with_answer,
    fork_points,
    is_final_answer,
    pieces_to_copy,
)
from tenure.domain.errors import InvalidRequest, WrongState

# Each letter an entry: Submitted, Transition, tools Defined, model attempt (M), Failure, Lost, Answer, Intent, Outcome,
# User's words, Cancel, Wait's resolution, comPaction, stEp of a
# function, its failure (X). A digit raises the step.
KINDS = {
    "S": "submitted",
    "T": "transition",
    "D": "tools_defined",
    "M": "model_attempt",
    "F": "model_failure",
    "L": "attempt_lost",
    "A": "assistant_message",
    "I": "tool_intent",
    "O": "tool_outcome",
    "U": "user_message",
    "C": "cancel_request",
    "W": "wait_resolution",
    "P": "compaction",
    "E": "control_step",
    "X": "control_failure",
}


def ledger(story: str) -> list[ForkPiece]:
    pieces: list[ForkPiece] = []
    step = 0
    for letter in story:
        if letter.isdigit():
            step = int(letter)
        else:
            pieces.append(ForkPiece(len(pieces) + 1, step, KINDS[letter]))
    return pieces


def copied_letters(story: str, sequences: list[int]) -> str:
    entries = [letter for letter in story if not letter.isdigit()]
    return "".join(entries[sequence - 1] for sequence in sequences)


WHOLE = "STTD1MAIIOO2MAT"


@pytest.mark.parametrize(
    ("story", "points"),
    [
        ("ST", [1, 2]),
        (WHOLE, [1, 2, 3, 4, 10, 12, 13]),
        ("STTD1M", [1, 2, 3, 4]),
        ("STTD1MF", [1, 2, 3, 4, 6]),
        ("STTD1MLT", [1, 2, 3, 4, 6, 7]),
        ("STTD1MAI", [1, 2, 3, 4]),
        ("STTD1MAUIO", [1, 2, 3, 4, 9]),
        ("STTD1MAIUO", [1, 2, 3, 4, 9]),
        ("STTD1MAIOP2MAP3MA", [1, 2, 3, 4, 8, 9, 12, 14]),
        ("STT1E2DIIOO3E4IXO", [1, 2, 3, 4, 9, 10, 13]),
    ],
)
def test_a_history_is_cut_between_calls_and_model_steps(story: str, points: list[int]) -> None:
    assert fork_points(ledger(story)) == points


def test_without_a_wish_it_is_cut_as_late_as_possible() -> None:
    assert choose_point(ledger(WHOLE)) == 13
    assert choose_point(ledger("STTD1MAIIO")) == 4


@pytest.mark.parametrize(("step", "point"), [(0, 4), (1, 10), (2, 13)])
def test_a_step_ends_with_its_calls(step: int, point: int) -> None:
    assert choose_point(ledger(WHOLE), step=step) == point


def test_an_incomplete_step_gives_the_nearest_earlier_cut() -> None:
    assert choose_point(ledger("STTD1MAIO2MAIIO"), step=2) == 8


def test_a_function_takes_its_steps_and_calls_along() -> None:
    story = "STT1E2DIO3EXT"
    kept = pieces_to_copy(ledger(story), 10, with_tools=True)
    assert copied_letters(story, [piece.sequence for piece in kept]) == "EDIOE"
    assert not ends_with_answer(kept)


def test_a_step_that_was_not_made_is_refused() -> None:
    assert isinstance(choose_point(ledger(WHOLE), step=3), InvalidRequest)


@pytest.mark.parametrize(
    ("at", "near"),
    [(5, {"before": "4", "after": "10"}), (11, {"before": "10", "after": "12"}), (99, {"before": "13"})],
)
def test_an_impossible_cut_is_refused_with_the_nearest(at: int, near: dict[str, str]) -> None:
    refused = choose_point(ledger(WHOLE), at_sequence=at)
    assert isinstance(refused, WrongState)
    assert (refused.reason, refused.metadata) == ("NO_FORK_POINT", near)
    for sequence in near.values():
        assert choose_point(ledger(WHOLE), at_sequence=int(sequence)) == int(sequence)


@pytest.mark.parametrize(
    ("story", "copied"),
    [
        (WHOLE, "DMAIIOOMA"),
        ("STTD1MFMLTTMAIOC", "DMAIO"),
        ("STTD1MAIWOUT", "DMAIWOU"),
        ("STTD1MAUIO2MF", "DMAUIO"),
    ],
)
def test_taken_over_is_the_conversation(story: str, copied: str) -> None:
    kept = pieces_to_copy(ledger(story), 99, with_tools=True)
    assert copied_letters(story, [piece.sequence for piece in kept]) == copied


def test_nothing_is_taken_over_beyond_the_cut() -> None:
    assert copied_letters(WHOLE, [p.sequence for p in pieces_to_copy(ledger(WHOLE), 10, with_tools=True)]) == "DMAIIOO"


def test_other_tools_are_defined_anew() -> None:
    assert copied_letters(WHOLE, [p.sequence for p in pieces_to_copy(ledger(WHOLE), 10, with_tools=False)]) == "MAIIOO"


def test_a_final_answer_leaves_nothing_to_do() -> None:
    assert ends_with_answer(pieces_to_copy(ledger(WHOLE), 13, with_tools=True))
    assert not ends_with_answer(pieces_to_copy(ledger(WHOLE), 10, with_tools=True))
    assert not ends_with_answer(pieces_to_copy(ledger("STD1MAU"), 6, with_tools=True))
    assert not ends_with_answer([])
    assert [is_final_answer(why) for why in ("end_turn", "max_tokens", "refusal")] == [True, False, False]
