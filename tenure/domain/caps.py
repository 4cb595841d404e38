"""Resolves the model and the cap in money of a new task.

A cap in money needs a known price: a capped task whose model has no price fails with MODEL_UNPRICED at its first model
call. So the default cap applies only to models with a price, and a task without a cap records why it has none.
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
    """The installation's defaults. `model` "": the worker chooses the model. `max_nano_usd` 0: no default cap."""

    model: str = ""
    max_nano_usd: int = 0


def resolve_submit(spec: TaskSpec, defaults: CapDefaults, has_price: Callable[[str], bool]) -> TaskSpec:
    """Returns the resolved spec of a new task. Ignores the submit's `money_cap`: only this function decides it."""
    return resolve_fork(replace(spec, limits=replace(spec.limits, money_cap=None)), defaults, has_price)


def resolve_fork(spec: TaskSpec, defaults: CapDefaults, has_price: Callable[[str], bool]) -> TaskSpec:
    """Returns the resolved spec of a fork. A recorded default cap is dropped if the fork's model has no price."""
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
