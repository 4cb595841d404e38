"""The exit code of `tenure serve all`, by which systemd decides whether to start it again."""

from __future__ import annotations

import pytest

from devstack.all_services import exit_code


@pytest.mark.parametrize(
    ("codes", "is_asked", "expected"),
    [
        ([0, 0, 0], True, 0),
        ([0, 3, 0], True, 3),
        ([0, -9, 0], True, 1),
        ([None, 0], True, 1),
        ([0, 0, 0], False, 1),
        ([0, 3, 0], False, 3),
        ([-9, 0, 0], False, 1),
    ],
)
def test_unrequested_end_is_a_failure(codes: list[int | None], is_asked: bool, expected: int) -> None:
    assert exit_code(codes, is_asked=is_asked) == expected
