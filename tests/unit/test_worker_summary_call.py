"""The call for a summary keeps the same limits as every other model call of its task."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from services.worker.context_window import window_for
from services.worker.dependencies import Dependencies, ModelDefaults
from services.worker.held_claims import HeldTask
from services.worker.model_attempt import AttemptWatch
from services.worker.model_step import ModelStep
from services.worker.models import CallEvents, ClaimedAttempt, FollowedCall
from tenure.domain.budget import TokenUsage
from tenure.domain.fencing import TASK_PREFIX, Claims
from tenure.domain.retry import FailureClass
from tenure.domain.task import AgentSpec, TaskPolicy, TaskSpec
from tenure.domain.timeouts import PhaseTimeout, Timeouts
from tenure.model_providers.client import ModelAnswer, ModelCallFailed, ModelRequest
from tenure.v1 import token_pb2
from tests.unit.test_compaction import Story

TASK = "00000000-0000-0000-0000-000000000001"


class TimedModels:
    """Keeps each request; each call takes too long."""

    outlives_worker = False
    timeout_seconds = 600.0
    in_reach = True

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    def call(self, _attempt: ClaimedAttempt, request: ModelRequest, _events: CallEvents) -> FollowedCall:
        self.requests.append(request)
        return _LateCall()


class _LateCall:
    usage = TokenUsage()
    request_id = ""

    async def answer(self) -> ModelAnswer:
        raise ModelCallFailed(FailureClass.TIMEOUT, "the model's answer was not complete within 7 s")


async def test_a_call_for_a_summary_has_the_timeout_of_the_task() -> None:
    models, story = TimedModels(), Story()
    story.turn("a long result")
    story.ask(through_step=1)
    policy = TaskPolicy(timeouts=Timeouts(model_call=PhaseTimeout(7.0)))
    spec = TaskSpec(goal="find out", agent=AgentSpec(model="m"), policy=policy)
    dependencies = cast(
        "Dependencies", SimpleNamespace(models=models, defaults=ModelDefaults("m", 1000), tools=None, trust=None)
    )
    held_task = HeldTask(Claims(f"{TASK_PREFIX}{TASK}", "acme", 1, "claim", "worker"), token_pb2.FencingToken(), "")
    ledger = cast("Any", SimpleNamespace(point=story.point))
    watch = AttemptWatch(held_task, ledger)
    step = ModelStep(dependencies, held_task, ledger, watch, spec, window_for(spec, dependencies.defaults))

    failure = await step.call()

    assert failure is not None
    assert failure.error_class == "TIMEOUT"
    (request,) = models.requests
    assert request.system != ""
    assert request.timeout_seconds == 7.0
