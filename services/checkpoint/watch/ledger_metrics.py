"""Counts what a durable transaction of the ledger did: transitions, pickups, and what model calls used and cost.

The ledger counts, and not the workers: it sees each of them exactly once, whichever worker, loop or sweep caused it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from services.checkpoint.commit.draft import Move
from services.checkpoint.rows import BillRow
from services.checkpoint.watch.announcement import Announcement
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.runtime.observability import metrics
from tenure.runtime.observability.metrics import Cell, MetricRegistry, model_labels

NANO: Final = 1e-9
_KNOWN_REASONS: Final = frozenset(value for name, value in vars(Reason).items() if name.isupper())
OTHER_REASON: Final = "OTHER"

_NEW: Final = frozenset({Reason.SUBMITTED, Reason.FORKED, Reason.SPAWNED})
_TAKEOVERS: Final = frozenset(
    {
        Reason.LEASE_EXPIRED,
        Reason.WORKER_LOST,
        Reason.WORKER_STUCK,
        Reason.WORKER_CRASHED,
        Reason.CLAIM_LOST,
        Reason.START_TIMEOUT,
    }
)

metrics.cell("tenure_transitions_total", state=TaskState.FAILED.value, reason=Reason.CRASH_LOOP)  # alerted on: from 0


def pickup_cause(queued_for: str) -> str:
    """Returns why a task was queued, as the label of its pickup: NEW, TAKEOVER or RESUMED."""
    if queued_for in _NEW:
        return "NEW"
    return "TAKEOVER" if queued_for in _TAKEOVERS else "RESUMED"


def count_announced(announcement: Announcement) -> None:
    """Counts the transitions and the bills of a durable transaction of this process."""
    for move in announcement.moves:
        _count_move(move)
    for bill in announcement.bills:
        _count_bill(bill)


def _count_move(move: Move) -> None:
    reason = move.reason if move.reason in _KNOWN_REASONS else OTHER_REASON
    metrics.count("tenure_transitions_total", state=move.to_state.value, reason=reason)
    if move.to_state is TaskState.RUNNING and move.queued_seconds is not None:
        metrics.observe("tenure_pickup_seconds", move.queued_seconds, cause=pickup_cause(move.from_reason))
    if move.to_state in TERMINAL:
        tenant = metrics.tenant_label(move.tenant)
        metrics.count("tenure_tenant_tasks_ended_total", tenant=tenant, state=move.to_state.value)
    if move.to_state is TaskState.COST_EXCEEDED:
        metrics.count("tenure_budget_stops_total", reason=reason)


@dataclass(frozen=True, slots=True)
class _ModelCells:
    """The cells of a model. A bill adds to eight cells, whose look-ups by labels would cost more than the additions."""

    input: Cell
    output: Cell
    cache_read: Cell
    cache_creation: Cell
    cost_usd: Cell


@lru_cache(maxsize=256)
def _model_cells(registry: MetricRegistry, model: str) -> _ModelCells:
    labels = model_labels(model)
    return _ModelCells(
        input=registry.cell("tenure_model_tokens_total", kind="input", **labels),
        output=registry.cell("tenure_model_tokens_total", kind="output", **labels),
        cache_read=registry.cell("tenure_model_tokens_total", kind="cache_read", **labels),
        cache_creation=registry.cell("tenure_model_tokens_total", kind="cache_creation", **labels),
        cost_usd=registry.cell("tenure_model_cost_usd_total", **labels),
    )


@lru_cache(maxsize=256)
def _bills_cell(registry: MetricRegistry, model: str, *, lost: bool, unpriced: bool) -> Cell:
    end, priced = "LOST" if lost else "SETTLED", str(not unpriced).lower()
    return registry.cell("tenure_model_bills_total", end=end, priced=priced, **model_labels(model))


@lru_cache(maxsize=256)
def _tenant_cells(registry: MetricRegistry, tenant: str) -> tuple[Cell, Cell]:
    """Returns the cells of tokens and of costs."""
    return (
        registry.cell("tenure_tenant_tokens_total", tenant=tenant),
        registry.cell("tenure_tenant_cost_usd_total", tenant=tenant),
    )


def _count_bill(bill: BillRow) -> None:
    usage, usd = bill.usage, bill.nano_usd * NANO
    registry = metrics.REGISTRY
    cells = _model_cells(registry, bill.model)
    cells.input.value += usage.input_tokens
    cells.output.value += usage.output_tokens
    cells.cache_read.value += usage.cache_read_input_tokens
    cells.cache_creation.value += usage.cache_creation_input_tokens
    cells.cost_usd.value += usd
    _bills_cell(registry, bill.model, lost=bill.lost, unpriced=bill.unpriced).value += 1
    tokens, cost_usd = _tenant_cells(registry, metrics.tenant_label(bill.tenant))
    tokens.value += usage.total
    cost_usd.value += usd
