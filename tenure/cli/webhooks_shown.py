"""Webhooks on the screen."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from rich.table import Table
from rich.text import Text

from tenure.cli.context import Context
from tenure.cli.tables import make_table
from tenure.cli.words import ago, count_text, one_line, seconds_text
from tenure.domain.webhooks import DeliveryState
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.times import moment, unix_seconds
from tenure.wire.webhooks import DELIVERY_STATES, GAP_REASONS

_RECENT_SECONDS: Final = 24 * 3600.0
"""So long after what was missed it is the first thing to be said of a webhook."""
_STYLES: Final = {DeliveryState.DELIVERED: "green", DeliveryState.PENDING: "yellow", DeliveryState.DEAD: "red"}


def show_all(context: Context, found: Iterable[pb.Webhook]) -> None:
    """A line each."""
    table = make_table("NAME", "STATE", "PENDING", "DEAD", "RECEIVED", "LAST", "URL")
    for column in (2, 3, 4):
        table.columns[column].justify = "right"
    for one in found:
        counts = f"{one.pending_deliveries:,}", f"{one.dead_deliveries:,}", f"{one.delivered:,}"
        table.add_row(one.name, _state(one), *counts, ago(one.last_delivered_time), one_line(one.url, 120))
    context.console.print(table)


def _state(webhook: pb.Webhook) -> Text:
    if webhook.paused:
        return Text(f"paused ({webhook.pause_code})", "yellow")
    if any(time.time() - unix_seconds(gap.to_time) < _RECENT_SECONDS for gap in webhook.gaps):
        return Text("missed changes", "red")
    return Text("failing", "red") if webhook.problem else Text("well", "green")


def show_webhook(context: Context, webhook: pb.Webhook) -> None:
    """One, with what it missed."""
    paused = f"{webhook.pause_code}: {one_line(webhook.pause_reason, 200)} ({webhook.pause_actor})"
    wanted = webhook.filter
    tasks = [f"{key}={value}" for key, value in sorted(wanted.labels.items())]
    tasks += [f"queue {wanted.queue}"] if wanted.queue else []
    overlap = f"signs too until {moment(webhook.old_secret_until_time):%Y-%m-%d %H:%M} UTC"
    rows: list[tuple[str, str | Text]] = [
        ("webhook", f"{webhook.name} · {webhook.webhook_id}"),
        ("url", webhook.url),
        ("events", ", ".join(webhook.event_types) or "ends, waits and warnings"),
        ("tasks", ", ".join(tasks)),
        ("state", _state(webhook)),
        ("paused", paused if webhook.paused else ""),
        ("problem", Text(one_line(webhook.problem, 300), "red") if webhook.problem else ""),
        ("received", f"{webhook.delivered:,}, the last {ago(webhook.last_delivered_time)}"),
        ("pending", f"{webhook.pending_deliveries:,}"),
        ("dead", count_text(webhook.dead_deliveries, "letter") if webhook.dead_deliveries else ""),
        ("old secret", overlap if webhook.HasField("old_secret_until_time") else ""),
        *[("missed", Text(_gap(gap), "red")) for gap in webhook.gaps],
    ]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        if value:
            grid.add_row(name, value)
    context.console.print(grid)


def _gap(gap: pb.WebhookGap) -> str:
    try:
        reason = GAP_REASONS.to_domain(gap.reason).value
    except ValueError:
        reason = f"REASON_{gap.reason}"
    span = f"{moment(gap.from_time):%Y-%m-%d %H:%M:%S} to {moment(gap.to_time):%Y-%m-%d %H:%M:%S} UTC"
    return f"maybe changes from {span}: {reason}"


def show_deliveries(context: Context, found: Iterable[pb.WebhookDelivery]) -> None:
    """A line each, the newest first."""
    table = make_table("DELIVERY", "EVENT", "TASK", "STATE", "TRIES", "WRITTEN", "NEXT", "WHY")
    table.columns[4].justify = "right"
    for one in found:
        state, style = _delivery_state(one)
        table.add_row(
            one.delivery_id,
            one.event_type,
            one.task_id or "-",
            Text(state, style),
            f"{one.attempts}",
            ago(one.create_time),
            _next(one),
            one_line(one.last_error, 120),
        )
    context.console.print(table)


def _delivery_state(delivery: pb.WebhookDelivery) -> tuple[str, str]:
    try:
        state = DELIVERY_STATES.to_domain(delivery.state)
    except ValueError:
        return f"STATE_{delivery.state}", "default"
    return state.value, _STYLES[state]


def _next(delivery: pb.WebhookDelivery) -> str:
    if delivery.HasField("next_attempt_time"):
        left = unix_seconds(delivery.next_attempt_time) - time.time()
        return f"in {seconds_text(left)}" if left > 0 else "now"
    return "-" if delivery.HasField("end_time") else "behind another"
