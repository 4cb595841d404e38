"""The numbers of the founding documents, through real processes.

test_asking_at_the_cap.py demands those of the $10 cap again while workers are killed.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
import pytest_asyncio

from devstack import Stack
from tenure.client import Client
from tenure.domain.states import Reason
from tenure.v1 import task_pb2
from tenure.wire.common import duration, moment
from tests.end_to_end.installation import Installation
from tests.end_to_end.test_asking_at_the_cap import AGENT, TEN_DOLLARS, Spent, spent_by
from tests.end_to_end.test_sub_agents import tree_of

pytestmark = [pytest.mark.server, pytest.mark.faults]


@pytest.mark.parametrize(
    ("model", "state", "length"),
    [
        ("sim-question", "WAITING_USER", timedelta(hours=24)),
        ("sim-approval", "WAITING_USER", timedelta(hours=24)),
        ("sim-e2e-event", "WAITING_EXTERNAL", timedelta(hours=2)),
    ],
)
async def test_a_person_has_24_hours_and_an_event_2(
    installation: Installation, model: str, state: str, length: timedelta
) -> None:
    task_id = await installation.submit(model, f"event-{uuid.uuid4().hex}")
    wait = (await installation.in_state(task_id, state)).wait
    assert moment(wait.deadline_time) - moment(wait.begin_time) == length
    await installation.client.cancel(task_id, "the test is over")


async def test_a_model_call_is_tried_5_times(installation: Installation) -> None:
    hours = task_pb2.RetryPolicy(
        initial_backoff=duration(3600), max_backoff=duration(3600), jitter=task_pb2.JITTER_NONE
    )
    task_id = await installation.submit("sim-e2e-overloaded", policy=task_pb2.TaskPolicy(retry=hours))
    scheduled = await installation.in_state(task_id, "RETRY_SCHEDULED")
    assert scheduled.reason == Reason.MODEL_UNAVAILABLE
    failed = [entry for entry in await installation.entries(task_id) if entry.body.HasField("model_failure")]
    assert len(failed) == 5
    await installation.client.cancel(task_id, "the test is over")


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def ten_dollars(shared_stack: Stack) -> Spent:
    """The end of eight sub-agents that work in parallel and together want twice the $10 of their root."""
    async with Client(shared_stack.gateway_address) as client:
        install = Installation(shared_stack, client)
        root = await install.submit("sim-by-goal", f"spending {uuid.uuid4().hex[:8]}", agent=AGENT, limits=TEN_DOLLARS)
        await install.ended(root)
        sub_agents = (await tree_of(install, root))[1:]
        ends = [(await install.ended(one.task_id)).reason for one in sub_agents]
        assert (len(ends), ends.count(Reason.MONEY_LIMIT) > 1) == (8, True), ends
        return await spent_by(install, root)


def test_a_10_dollar_cap_is_exceeded_by_less_than_10_cents(ten_dollars: Spent) -> None:
    assert ten_dollars.budget.max_nano_usd == 10 * 10**9
    ten_dollars.check_overshoot()


def test_accounting_is_within_1_percent_of_the_bill(ten_dollars: Spent) -> None:
    assert ten_dollars.unheard_nano_usd == 0, "no worker died"
    ten_dollars.check_accounting()


def test_the_budget_alert_comes_at_80_percent(ten_dollars: Spent) -> None:
    ten_dollars.check_alert()
