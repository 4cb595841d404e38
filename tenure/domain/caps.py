"""The model and the cap in money of a task whose submit names none.

A cap in money needs a known price: a capped task whose model has none ends as MODEL_UNPRICED at its first call. So the
default cap holds for models with a price, and the task records why it has no cap otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenure.domain.task import MoneyCap

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenure.domain.task import Limits, TaskSpec


@dataclass(frozen=True, slots=True)
class CapDefaults:
    """What an installation sets. `model` "": the worker chooses it. `max_nano_usd` 0: no cap in money by default."""

    model: str = ""
    max_nano_usd: int = 0


def resolve_submit(spec: TaskSpec, defaults: CapDefaults, has_price: Callable[[str], bool]) -> TaskSpec:
    """The spec of a new task. A submit cannot say where its cap comes from, so that field is decided here alone."""
    return resolve_fork(replace(spec, limits=replace(spec.limits, money_cap=None)), defaults, has_price)


def resolve_fork(spec: TaskSpec, defaults: CapDefaults, has_price: Callable[[str], bool]) -> TaskSpec:
    """The same of a spec that was recorded before: a default cap does not follow a fork to a model without a price."""
    model = spec.agent.model or defaults.model
    limits = _resolve_limits(spec.limits, defaults, has_price=bool(model) and has_price(model))
    return replace(spec, agent=replace(spec.agent, model=model), limits=limits)


def _resolve_limits(limits: Limits, defaults: CapDefaults, *, has_price: bool) -> Limits:
    if limits.no_money_cap:
        return replace(limits, max_nano_usd=0, money_cap=MoneyCap.NONE_SUBMITTED)
    is_default = limits.money_cap is MoneyCap.DEFAULT
    if limits.max_nano_usd and (has_price or not is_default):
        return replace(limits, money_cap=MoneyCap.DEFAULT if is_default else MoneyCap.SUBMITTED)
    if not has_price:
        return replace(limits, max_nano_usd=0, money_cap=MoneyCap.NONE_UNPRICED)
    if not defaults.max_nano_usd:
        return replace(limits, max_nano_usd=0, money_cap=MoneyCap.NONE_SET)
    return replace(limits, max_nano_usd=defaults.max_nano_usd, money_cap=MoneyCap.DEFAULT)
