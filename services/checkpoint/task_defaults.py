"""The defaults of a new task: the only place where a submit or a fork becomes a complete spec."""

from __future__ import annotations

from datetime import UTC, datetime

from services.checkpoint.prices import PriceList
from services.checkpoint.submit.source_defaults import SourceDefaults
from tenure.domain.errors import InvalidRequest
from tenure.domain.model_parameters import problems_with
from tenure.domain.task import CapDefaults, TaskSpec, resolve_fork, resolve_submit
from tenure.v1 import task_pb2
from tenure.wire.task import spec_to_domain, spec_to_wire


class TaskDefaults:
    """Applies the source's defaults, then the model, then the money cap, which needs the model's price."""

    def __init__(
        self,
        sources: SourceDefaults | None = None,
        caps: CapDefaults | None = None,
        prices: PriceList | None = None,
    ) -> None:
        self.sources = sources or SourceDefaults()
        self._caps = caps or CapDefaults()
        self._prices = prices or PriceList()

    def of_submit(self, spec: task_pb2.TaskSpec) -> TaskSpec:
        """Returns the effective spec. The submitted spec stays unchanged, so that a repeat can be recognised.

        Raises InvalidRequest for parameters that the model's provider does not have.
        """
        return _checked(
            resolve_submit(spec_to_domain(self.sources.fill(spec)), self._caps, self._has_price), "spec.agent"
        )

    def of_fork(self, spec: task_pb2.TaskSpec) -> task_pb2.TaskSpec:
        """Returns the effective spec of a fork, from the other task's spec with the overrides of the fork.

        Raises InvalidRequest as `of_submit`.
        """
        return spec_to_wire(_checked(resolve_fork(spec_to_domain(spec), self._caps, self._has_price), "overrides"))

    def _has_price(self, model: str) -> bool:
        return self._prices.of(model, datetime.now(UTC)) is not None


def _checked(spec: TaskSpec, field: str) -> TaskSpec:
    """Returns the spec. Raises InvalidRequest for parameters that the provider of its model does not have."""
    if problems := list(problems_with(spec.agent.model, spec.agent.parameters)):
        raise InvalidRequest(violations=[(f"{field}.parameters.{name}", problem) for name, problem in problems])
    return spec
