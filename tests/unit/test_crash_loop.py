"""The rule that tells a task that kills its owners from one whose owners just died."""

from __future__ import annotations

from functools import reduce

from tenure.domain.close_out import CRASH_LOOP_DEATHS_OF_FEW, OwnerDeaths, is_suspect


def after(*owners: str) -> OwnerDeaths:
    return reduce(OwnerDeaths.and_of, owners, OwnerDeaths())


def test_five_crashes_of_three_workers_are_a_crash_loop() -> None:
    assert after("a", "b", "c", "a", "b").is_crash_loop
    assert not after("a", "b", "c", "a").is_crash_loop
    assert not after("a", "b", "a", "b", "a").is_crash_loop


def test_ten_crashes_of_one_worker_are_a_crash_loop() -> None:
    assert not after(*["same"] * (CRASH_LOOP_DEATHS_OF_FEW - 1)).is_crash_loop
    assert after(*["same"] * CRASH_LOOP_DEATHS_OF_FEW).is_crash_loop
    assert after(*["same"] * CRASH_LOOP_DEATHS_OF_FEW).owners == ("same",)


def test_a_worker_under_a_new_name_is_another() -> None:
    assert after(*[f"host-{number}" for number in range(5)]).is_crash_loop


def test_a_new_step_forgets_the_names_too() -> None:
    died = OwnerDeaths(0, after("a", "b", "c").owners).and_of("d")
    assert died == OwnerDeaths(1, ("d",))


def test_a_task_is_a_suspect_before_it_is_a_crash_loop() -> None:
    assert [is_suspect(count) for count in range(5)] == [False, False, False, True, True]
    assert not after("a", "b", "c").is_crash_loop
