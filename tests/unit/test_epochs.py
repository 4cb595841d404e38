"""Epochs grow, whatever happens to etcd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.fencing import (
    MAX_GENERATION,
    MAX_REVISION,
    compose_epoch,
    describe_epoch,
    split_epoch,
)

generations = st.integers(0, MAX_GENERATION)
revisions = st.integers(1, MAX_REVISION)


@given(generations, revisions)
def test_an_epoch_is_a_positive_int64_that_can_be_split(generation: int, revision: int) -> None:
    epoch = compose_epoch(generation, revision)
    assert 0 < epoch < 2**63
    assert split_epoch(epoch) == (generation, revision)


@given(st.integers(0, MAX_GENERATION - 1), revisions, revisions)
def test_a_higher_generation_beats_every_revision(generation: int, before: int, after: int) -> None:
    assert compose_epoch(generation + 1, after) > compose_epoch(generation, before)


@pytest.mark.parametrize(("generation", "revision"), [(-1, 1), (MAX_GENERATION + 1, 1), (0, 0), (0, MAX_REVISION + 1)])
def test_numbers_outside_of_the_int64_are_refused(generation: int, revision: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        compose_epoch(generation, revision)


def test_an_epoch_is_shown_with_its_generation() -> None:
    assert describe_epoch(compose_epoch(2, 117)) == "2.117"
    assert describe_epoch(0) == "-"
