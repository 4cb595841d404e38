"""Portions of facts: nothing is lost or reordered, and each fits into a commit."""

from hypothesis import given
from hypothesis import strategies as st

from tenure.wire.checkpoint_service import MAX_BYTES, MAX_ENTRIES, portions

sizes = st.lists(st.integers(1, MAX_BYTES), max_size=40) | st.lists(st.just(1), min_size=250, max_size=600)


def itself(size: int) -> int:
    return size


@given(sizes, st.integers(0, MAX_BYTES))
def test_portions_keep_their_order_and_fit_in_a_message(items: list[int], last_bytes: int) -> None:
    made = portions(items, itself, last_bytes=last_bytes)
    assert [item for part in made for item in part] == items
    assert all(part and sum(part) <= MAX_BYTES and len(part) <= MAX_ENTRIES for part in made[:-1])
    assert sum(made[-1]) + last_bytes <= MAX_BYTES
    assert len(made[-1]) <= MAX_ENTRIES


def test_nothing_is_one_empty_portion() -> None:
    assert portions([], itself) == [[]]
