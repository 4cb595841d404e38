"""The money cap of a new task: the submitted one, or the default where the model has a price."""

from __future__ import annotations

from typing import Any

import pytest

from services.checkpoint.task_defaults import TaskDefaults
from tenure.domain.task import CapDefaults
from tenure.v1 import task_pb2
from tenure.wire.task import spec_to_wire

OPUS, UNPRICED = "claude-opus-4-8", "unpriced"
DOLLAR = 10**9
DEFAULT, SUBMITTED = task_pb2.MONEY_CAP_DEFAULT, task_pb2.MONEY_CAP_SUBMITTED
NONE_UNPRICED, NONE_SET = task_pb2.MONEY_CAP_NONE_UNPRICED, task_pb2.MONEY_CAP_NONE_SET
NONE_SUBMITTED = task_pb2.MONEY_CAP_NONE_SUBMITTED
NO_CAP = task_pb2.Limits(no_money_cap=True)


@pytest.mark.parametrize(
    ("defaults", "spec", "expected"),
    [
        (CapDefaults(OPUS, 10 * DOLLAR), {"agent": task_pb2.AgentSpec(model=UNPRICED)}, (UNPRICED, 0, NONE_UNPRICED)),
        (CapDefaults(UNPRICED, 10 * DOLLAR), {}, (UNPRICED, 0, NONE_UNPRICED)),
        (CapDefaults("", 10 * DOLLAR), {}, ("", 0, NONE_UNPRICED)),
        (CapDefaults("", 10 * DOLLAR), {"agent": task_pb2.AgentSpec(model=OPUS)}, (OPUS, 10 * DOLLAR, DEFAULT)),
        (CapDefaults(OPUS, 0), {}, (OPUS, 0, NONE_SET)),
        (CapDefaults(OPUS, DOLLAR // 4), {}, (OPUS, DOLLAR // 4, DEFAULT)),
        (CapDefaults(OPUS, 10 * DOLLAR), {"limits": task_pb2.Limits(max_nano_usd=5)}, (OPUS, 5, SUBMITTED)),
        (CapDefaults("", 10 * DOLLAR), {"limits": task_pb2.Limits(max_nano_usd=5)}, ("", 5, SUBMITTED)),
        (
            CapDefaults(OPUS, 10 * DOLLAR),
            {"limits": task_pb2.Limits(max_nano_usd=5, money_cap=DEFAULT)},
            (OPUS, 5, DEFAULT),
        ),
        (
            CapDefaults(UNPRICED, 10 * DOLLAR),
            {"limits": task_pb2.Limits(max_nano_usd=5, money_cap=DEFAULT)},
            (UNPRICED, 0, NONE_UNPRICED),
        ),
        (CapDefaults(OPUS, 10 * DOLLAR), {"limits": NO_CAP}, (OPUS, 0, NONE_SUBMITTED)),
        (CapDefaults(UNPRICED, 10 * DOLLAR), {"limits": NO_CAP}, (UNPRICED, 0, NONE_SUBMITTED)),
        (
            CapDefaults(OPUS, 10 * DOLLAR),
            {"limits": task_pb2.Limits(money_cap=NONE_SUBMITTED)},
            (OPUS, 10 * DOLLAR, DEFAULT),
        ),
    ],
)
def test_the_money_cap_is_submitted_or_the_default_with_a_price(
    defaults: CapDefaults, spec: Any, expected: tuple[str, int, task_pb2.MoneyCap.ValueType]
) -> None:
    resolved = spec_to_wire(TaskDefaults(caps=defaults).of_submit(task_pb2.TaskSpec(goal="go", **spec)))
    assert (resolved.agent.model, resolved.limits.max_nano_usd, resolved.limits.money_cap) == expected
