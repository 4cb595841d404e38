"""Laws of the fault suite's plans: a seed says everything, and what it plans can be carried out."""

from __future__ import annotations

import pytest

from tenure.runtime.failpoints import FAILPOINTS, arm, disarm
from tests.fault.failpoint_scenes import ELSEWHERE, SCENES, rounds
from tests.fault.suite.faults import INJECTORS
from tests.fault.suite.scenarios import FAMILY, MEMBER, SCENARIOS, SLOWEST, WEIGHTS
from tests.fault.suite.schedule import PLANNED, Mode, Shape, kind_of, plan

pytestmark = pytest.mark.faults
SERVICES = ("gateway", "coordinator", "coordinator-2", "checkpoint", "tools", "tools-2", "worker-1", "worker-2")
SHAPE = Shape(SERVICES, ("worker-1>tools", "worker-1>tools-2", "coordinator>etcd"))
SEEDS = range(300)


def test_a_seed_plans_the_same_every_time() -> None:
    assert all(plan(seed, SHAPE) == plan(seed, SHAPE) for seed in SEEDS)
    assert len({str(plan(seed, SHAPE)) for seed in SEEDS}) == len(SEEDS)


def test_even_seeds_are_liveness_and_odd_ones_safety() -> None:
    assert {plan(seed, SHAPE).mode for seed in SEEDS if seed % 2 == 0} == {Mode.LIVENESS}
    assert {plan(seed, SHAPE).mode for seed in SEEDS if seed % 2} == {Mode.SAFETY}
    assert plan(2, SHAPE, Mode.SAFETY).mode is Mode.SAFETY


def test_everything_that_is_planned_can_be_carried_out() -> None:
    faults = [fault for seed in SEEDS for fault in plan(seed, SHAPE).faults]
    assert {fault.kind for fault in faults} <= set(INJECTORS)
    places = {*SHAPE.services, *SHAPE.links, *SHAPE.stores, "simulator"}
    assert {fault.target for fault in faults} <= places
    for fault in faults:
        if fault.kind == "arm":
            arm(fault.detail)
            assert fault.detail.startswith(f"{kind_of(fault.target)}.")
    disarm()


def test_every_scenario_is_chosen_and_every_failpoint_is_tried() -> None:
    plans = [plan(seed, SHAPE) for seed in range(800)]
    assert {task.scenario for each in plans for task in each.tasks} == {*WEIGHTS, FAMILY}
    assert {*WEIGHTS, FAMILY, MEMBER, SLOWEST} == set(SCENARIOS)
    tried = {fault.detail.partition("=")[0] for each in plans for fault in each.faults if fault.kind == "arm"}
    assert tried == set(PLANNED)


def test_faults_are_over_when_all_is_mended() -> None:
    for seed in SEEDS:
        schedule = plan(seed, SHAPE)
        assert all(fault.at + fault.seconds <= schedule.heal_at for fault in schedule.faults)


def test_every_failpoint_is_met_in_exactly_one_round() -> None:
    met = [name for of_work in (True, False) for each in rounds(of_work=of_work) for name in each]
    assert sorted(met) == sorted({*FAILPOINTS} - ELSEWHERE)
    assert set(FAILPOINTS) > ELSEWHERE
    assert set(SCENES) <= set(FAILPOINTS)
