"""Laws of the order in which the files of the suite are run."""

from __future__ import annotations

from pathlib import Path

from tests.support.collection_order import mixed


def test_every_file_runs_once_in_its_groups_order() -> None:
    few, many = [Path(f"a{n}") for n in range(3)], [Path(f"b{n}") for n in range(9)]
    order = mixed([few, many])
    assert [path for path in order if path in few] == few
    assert [path for path in order if path in many] == many
    assert len(order) == len(few) + len(many)
    assert [order.index(path) // 4 for path in few] == [0, 1, 2]
