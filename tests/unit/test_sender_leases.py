"""The sender leases of a replica are shared by tenants, and end for webhooks that wait."""

from __future__ import annotations

from collections import Counter

from tenure.domain.webhooks import chosen, surplus

MOST = 64


def leases(due: list[str], held: list[str] | None = None) -> Counter[str]:
    """The leases of each tenant after a look."""
    running = held or []
    return Counter([*running, *(due[index] for index in chosen(due, running, MOST - len(running)))])


def test_a_tenant_alone_leaves_a_quarter_of_the_leases_free() -> None:
    assert leases(["a"] * 200) == {"a": 48}
    assert leases(["a"] * 10, ["a"] * 48) == {"a": 48}
    assert leases(["a"] * 20) == {"a": 20}


def test_tenant_that_comes_later_finds_free_leases() -> None:
    assert leases(["a"] * 50 + ["b"] * 9, ["a"] * 48) == {"a": 48, "b": 9}
    assert leases(["a"] * 50 + ["b"] * 50, ["a"] * 48) == {"a": 48, "b": 12}
    assert leases(["a"] * 200 + ["b"] * 200) == {"a": 28, "b": 27}


def test_last_lease_goes_to_the_tenant_with_the_fewest() -> None:
    held = [f"t{number}" for number in range(63)]
    assert leases(["t0", "t1", "new"], held)["new"] == 1
    assert sum(leases([f"n{number}" for number in range(100)]).values()) == MOST
    assert chosen(["new"], [*held, "x"], 0) == []


def test_those_that_waited_longest_are_chosen_first() -> None:
    assert chosen(["a", "b", "a", "c"], [], 3) == [0, 1, 3]


def test_oldest_leases_of_the_largest_tenant_end_early() -> None:
    held = ["b", "a", "a", "b", "a", "a"]
    assert surplus(held, 1) == [1]
    assert surplus(held, 3) == [1, 2, 0]
    assert sorted(surplus(held, 99)) == [0, 1, 2, 3, 4, 5]
    assert surplus(held, 0) == surplus(held, -2) == surplus([], 3) == []
