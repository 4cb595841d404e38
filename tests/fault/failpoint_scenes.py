"""What has to happen so that a failpoint is met, and the law at each: nothing is lost, nothing happens twice.

The process is killed at the failpoint itself, started again by the test, and everything must come to its
end with every check of the checker passing. One stack serves a module's failpoints in turn, and to save time every
service meets one of its own in the same trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from tenure.runtime.failpoints import FAILPOINTS
from tests.fault.suite.faults import arm
from tests.fault.suite.installation import Installation
from tests.fault.suite.prunes import HURRIED
from tests.fault.suite.scenarios import SHAPED, SLOWEST
from tests.fault.suite.schedule import Mode, PlannedFault, PlannedTask, Schedule
from tests.fault.suite.trial import Trial

TRIES: Final = 8
DEATH_SECONDS: Final = 15.0
VICTIMS: Final = {"worker": "worker-1", "checkpoint": "checkpoint", "tools": "tools", "coordinator": "coordinator"}


@dataclass(frozen=True, slots=True)
class Scene:
    """Tasks and faults that lead to a place; `also`: other failpoints to arm with it."""

    tasks: tuple[PlannedTask, ...]
    faults: tuple[PlannedFault, ...] = ()
    also: str = ""


def _tasks(*scenarios: str, **client: Any) -> tuple[PlannedTask, ...]:
    return tuple(PlannedTask(0.0, scenario, watchers=1, **client) for scenario in scenarios)


# Of each kind as many that the armed worker gets some.
WORK: Final = Scene(_tasks("mixed", *["keyed"] * 2, "unsafe", *["refused-often"] * 4, *["siblings"] * 3))
SHAPES: Final = Scene(_tasks(*[SHAPED] * 4))
# The cancels come while calls run, however long the dead take to come back: else there is nothing to fence.
CANCELS: Final = Scene(
    (
        *_tasks(*[SLOWEST] * 3, cancel_after=0.5, cancels_call=True),
        *_tasks(*[SLOWEST] * 3, cancel_after=3.0, cancels_call=True),
        *_tasks("long", cancel_after=1.5),
    )
)
DEADLINES: Final = Scene(_tasks("slow-tools", "slow-tools", timeout_seconds=1.5))
LOSSES: Final = Scene(
    _tasks("keyed", "unsafe", "slow-tools", "mixed"),
    (PlannedFault(0.5, "kill_at_work", "worker-1", 15.0),),
)
ENDINGS: Final = Scene(
    _tasks("slow-tools", "slow-tools", cancel_after=1.6),
    (PlannedFault(1.5, "freeze", "worker-1", 5.0), PlannedFault(1.5, "freeze", "worker-2", 5.0)),
)
GENERATION: Final = Scene(_tasks("keyed", "keyed"), (PlannedFault(0.5, "lose_generation", "etcd"),))
STALE: Final = Scene(_tasks("slow-tools", "slow-tools"), (PlannedFault(1.0, "stale_write", "checkpoint"),))
LEASES: Final = Scene((), (PlannedFault(0.0, "use_lease", "coordinator", 5.0),))
DRAINS: Final = Scene(_tasks("keyed", "unsafe"), (PlannedFault(0.5, "drain_worker", "worker-2", 4.0),))
RECONNECTS: Final = Scene(
    _tasks("keyed"), tuple(PlannedFault(at, "reset", "worker-1>coordinator") for at in (1.0, 3.0, 5.0, 8.0, 11.0))
)
SIGNALS: Final = Scene((), (PlannedFault(0.0, "send_signals", "checkpoint", 5.0),))
WEBHOOKS: Final = Scene((), (PlannedFault(0.0, "receive_webhooks", "checkpoint", 5.0, "2"),))
PRUNES: Final = Scene((), (PlannedFault(0.0, "prune", "checkpoint", detail=HURRIED),))
FORKS: Final = Scene((), (PlannedFault(0.0, "fork", "checkpoint"),))
SLOW_START: Final = Scene(_tasks("keyed", "unsafe"), also="tools.before_effect=1#sleep(1500)")

SCENES: Final = {
    "worker.before_correction": SHAPES,
    "worker.after_fence": CANCELS,
    "checkpoint.before_foreign": CANCELS,
    "checkpoint.after_foreign": CANCELS,
    "checkpoint.before_signal": SIGNALS,
    "checkpoint.after_signal": SIGNALS,
    "checkpoint.before_requeue": LOSSES,
    "checkpoint.after_requeue": LOSSES,
    "checkpoint.before_sweep": DEADLINES,
    "checkpoint.after_sweep": DEADLINES,
    "checkpoint.after_events": WEBHOOKS,
    "checkpoint.after_delivery": WEBHOOKS,
    "checkpoint.before_raise": GENERATION,
    "checkpoint.after_raise": GENERATION,
    "checkpoint.before_prune": PRUNES,
    "checkpoint.after_prune": PRUNES,
    "checkpoint.before_clear": PRUNES,
    "checkpoint.after_clear": PRUNES,
    "checkpoint.after_prepare": FORKS,
    "tools.after_copy": FORKS,
    "checkpoint.before_refusals": STALE,
    "checkpoint.after_refusals": STALE,
    "tools.before_fence": CANCELS,
    "tools.after_fence": CANCELS,
    "tools.before_settle": CANCELS,
    "tools.after_settle": CANCELS,
    "tools.before_withdraw": SLOW_START,
    "tools.after_withdraw": SLOW_START,
    "tools.before_forget": PRUNES,
    "tools.after_forget": PRUNES,
    "tools.before_removal": PRUNES,
    "coordinator.before_forget": PRUNES,
    "coordinator.after_forget": PRUNES,
    "coordinator.before_session": LOSSES,
    "coordinator.after_lease": LOSSES,
    "coordinator.after_session": LOSSES,
    "coordinator.before_session_end": LOSSES,
    "coordinator.before_revoke": LOSSES,
    "coordinator.after_revoke": LOSSES,
    "coordinator.before_requeue": LOSSES,
    "coordinator.after_requeue": LOSSES,
    "coordinator.before_raise": GENERATION,
    "coordinator.after_ledger_raise": GENERATION,
    "coordinator.after_raise": GENERATION,
    "coordinator.after_ending_claim": ENDINGS,
    "coordinator.before_ending_open": ENDINGS,
    "coordinator.after_ending_open": ENDINGS,
    "coordinator.before_ending_commit": ENDINGS,
    "coordinator.before_ending_release": ENDINGS,
    "coordinator.before_drain": DRAINS,
    "coordinator.after_drain": DRAINS,
    "coordinator.after_lease_claim": LEASES,
    "coordinator.after_lease_register": LEASES,
}
"""All others are met by WORK, without those of ELSEWHERE."""

OF_MODEL_RUNNERS: Final = frozenset({"models.before_admission", "models.before_call", "models.before_end"})
"""The suite's workers call models directly: test_model_calls.py meets these."""

OF_RULES: Final = frozenset({"tools.before_ruled_accept", "tools.bounds_locked", "tools.after_ruled_accept"})
"""The suite's tenants have no rules: tests/conformance/test_tool_rules.py meets these."""
OF_SETTLEMENTS: Final = frozenset({"tools.after_settling", "tools.before_repeat", "tools.before_check"})
"""The suite's tools lose no answer: tests/edges/http_tools/test_http_settled.py meets these."""

ELSEWHERE: Final = (
    OF_MODEL_RUNNERS
    | OF_RULES
    | OF_SETTLEMENTS
    | {"worker.before_own_tool", "worker.after_own_tool", "worker.after_keep"}
)
"""The suite's tasks are agents', without own tools and large results of functions: test_own_tools.py and
tests/testing/test_large_results.py meet the others."""


def rounds(*, of_work: bool) -> list[tuple[str, ...]]:
    """All failpoints, those of one scene together, at most one of each service: they die in the same trial."""
    items: list[tuple[str, ...]] = []
    for scene in dict.fromkeys([WORK, *SCENES.values()]):
        if (scene is WORK) is of_work:
            names = [name for name in FAILPOINTS if SCENES.get(name, WORK) is scene and name not in ELSEWHERE]
            columns = [[name for name in names if name.startswith(f"{service}.")] for service in VICTIMS]
            items += [tuple(filter(None, row)) for row in zip_longest(*columns)]
    return items


async def check_kills_at(install: Installation, failpoints: Sequence[str]) -> None:
    """Each process dies there, and the promises hold. What leads there is a matter of time: it may take more tries."""
    to_meet = set(failpoints)
    for _ in range(TRIES):
        to_meet -= await _meet(install, sorted(to_meet))
        if not to_meet:
            return
    raise AssertionError(f"not met: {', '.join(sorted(to_meet))}")


async def _meet(install: Installation, failpoints: Sequence[str]) -> set[str]:
    """One trial; those that were met."""
    scene, before = SCENES.get(failpoints[0], WORK), len(install.keeper.deaths)
    armed = {name: ";".join(filter(None, [f"{name}=1#kill9", scene.also])) for name in failpoints}
    victims = {name: VICTIMS[name.partition(".")[0]] for name in failpoints}
    for name in failpoints:
        await arm(install, PlannedFault(0.0, "arm", victims[name], 0.0, armed[name]))
    for name in failpoints:
        await install.keeper.serves_or_died(victims[name], before)
    deaths = [PlannedFault(0.0, "dies", victims[name], DEATH_SECONDS, armed[name]) for name in failpoints]
    verdict = await Trial(install, Schedule(0, Mode.LIVENESS, scene.tasks, (*scene.faults, *deaths))).run()
    assert not verdict.violations, "\n".join(map(str, verdict.violations))
    died_at = {one.armed for one in install.keeper.deaths[before:] if one.by_failpoint}
    return {name for name in failpoints if armed[name] in died_at}
