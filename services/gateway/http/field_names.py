"""What a request over HTTP calls the fields of the contract, so that a refusal names what the client sent."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from tenure.sdk.submit_options import argument_of

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "after_sequence": ("after_sequence", "Last-Event-ID"),
    "after_cursor": ("after",),
    "answer": ("decision",),
    "basis_points": ("percent",),
    "begin_time": ("since",),
    "catch_up_window": ("catch_up_seconds",),
    "clear_end_time": ("clear_end_at",),
    "clear_start_time": ("clear_start_at",),
    "edited_arguments_json": ("edited_arguments",),
    "end_time": ("end_at", "until"),
    "extra_budget_nano_usd": ("extra_cost",),
    "expire_time": ("expires_at",),
    "extra_nano_usd": ("extra_cost",),
    "idle": ("idle_seconds",),
    "kinds": ("kind",),
    "lease_below": ("lease_below_seconds",),
    "overlap": ("overlap_seconds",),
    "extra_budget_tokens": ("extra_tokens",),
    "filter.agent_revision": ("agent",),
    "filter.created_before": ("before",),
    "filter.created_since": ("since",),
    "filter.labels": ("label",),
    "filter.max_nano_usd": ("max_cost",),
    "filter.min_nano_usd": ("min_cost",),
    "filter.output.kind": ("output_kind",),
    "filter.output.uri_prefix": ("output_uri",),
    "filter.reasons": ("reason",),
    "filter.states": ("state",),
    "filter.task_ids": ("task_id",),
    "group_by": ("by",),
    "page_size": ("page_size", "limit"),
    "payload_json": ("payload",),
    "run_count": ("runs",),
    "start_time": ("start_at",),
    "states": ("state",),
    "tenant": ("of_tenant", "name"),
    "timeout": ("timeout_seconds",),
    "decision.did_not_happen.runner_is_gone": ("runner_is_gone",),
    "decision.happened.result": ("result",),
    "decision": ("decision", "resolution"),
}
"""The names of a field in the routes that have it, if they call it otherwise."""
_WITHIN: Final = {"definition": "definition", "filter": "", "overrides": "spec", "spec": "spec", "tool_rule": ""}
"""Messages whose fields a request has without the message around them."""


def name_of(field: str, own: Collection[str]) -> str:
    """Returns what a route calls a field. `own`: the names of its path, its query and its body."""
    if field.startswith("filter.") and "filter" in own:
        return "filter." + next(name for name in _possible(field) if not name.startswith(("filter.", "task.")))
    return next((name for name in _possible(field) if _first(name) in own), field)


def _possible(field: str) -> Iterator[str]:
    yield field
    matching = [path for path in _NAMES if field == path or field.startswith((f"{path}.", f"{path}["))]
    for path in sorted(matching, key=len, reverse=True):
        yield from (name + field.removeprefix(path) for name in _NAMES[path])
    message, _, rest = field.partition(".")
    if message in _WITHIN and rest:
        name = argument_of(f"{_WITHIN[message]}.{rest}") if _WITHIN[message] else rest
        yield from (f"task.{name}", name)
        if message == "overrides":
            yield argument_of(f"spec.agent.{rest}")


def _first(name: str) -> str:
    return name.split(".", 1)[0].split("[", 1)[0]
