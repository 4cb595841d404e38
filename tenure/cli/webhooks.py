"""`tenure webhooks`: what happens to tasks, told to HTTP endpoints."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import click
from rich.table import Table
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import (
    ago,
    count_text,
    make_table,
    one_line,
    seconds_text,
)
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, LABEL
from tenure.client import Client
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.webhooks import DeliveryState, unknown_events
from tenure.v1 import task_pb2
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import duration, moment, unix_seconds
from tenure.wire.webhook_service import DELIVERY_STATES, GAP_REASONS

# Webhooks on the screen.

_RECENT_SECONDS: Final = 24 * 3600.0
"""So long after what was missed it is the first thing to be said of a webhook."""
_STYLES: Final = {DeliveryState.DELIVERED: "green", DeliveryState.PENDING: "yellow", DeliveryState.DEAD: "red"}


def show_all(context: Context, webhooks: Iterable[pb.Webhook]) -> None:
    """A line each."""
    table = make_table("NAME", "STATE", "PENDING", "DEAD", "RECEIVED", "LAST", "URL")
    for column in (2, 3, 4):
        table.columns[column].justify = "right"
    for one in webhooks:
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


def show_deliveries(context: Context, deliveries: Iterable[pb.WebhookDelivery]) -> None:
    """A line each, the newest first."""
    table = make_table("DELIVERY", "EVENT", "TASK", "STATE", "TRIES", "WRITTEN", "NEXT", "WHY")
    table.columns[4].justify = "right"
    for one in deliveries:
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


_STATES: Final = {state.value.lower(): state for state in DeliveryState}

_webhook = click.argument("webhook", metavar="WEBHOOK")
_letter = click.argument("delivery_id", metavar="[DELIVERY]", required=False, default="")
_all = click.option("--all", "every", is_flag=True, help="All dead letters of the webhook.")


@click.group()
def webhooks() -> None:
    """Tell HTTP endpoints what happens to tasks, signed. WEBHOOK is a name or an id."""


@webhooks.command(short_help="Create a webhook, and print its secret once.")
@click.argument("name")
@click.argument("url")
@click.option(
    "--event",
    "events",
    multiple=True,
    metavar="TYPE",
    help="task.succeeded, task.running, task.* and so on; may be repeated. Default: ends, waits and warnings.",
)
@click.option("--label", "labels", type=LABEL, multiple=True, help="key=value: only of tasks with it; may be repeated.")
@click.option("--queue", default="", help="Only of tasks in this queue.")
@click.option("--secret", default="", help="whsec_…; without it one is made.")
@pass_context
def create(
    context: Context,
    /,
    name: str,
    url: str,
    events: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    queue: str,
    secret: str,
) -> None:
    """Tell URL what happens to tasks from now on. Its secret is printed once: receivers check signatures by it."""
    wanted = task_pb2.TaskFilter(labels=dict(labels), queue=queue)
    request = pb.CreateWebhookRequest(name=name, url=url, event_types=events, filter=wanted, secret=secret)

    async def work(client: Client) -> None:
        made = await client.create_webhook(request)
        for unknown in unknown_events(events):
            echo(f"note: nothing is called {unknown} yet", err=True)
        if context.as_json:
            context.emit(made)
            return
        echo(made.secret)
        echo(f"{name} tells {url}. Try it: tenure webhooks test {name}", err=True)

    context.run(work)


@webhooks.command("list")
@pass_context
def list_webhooks(context: Context) -> None:
    """Show all webhooks, by name."""

    async def work(client: Client) -> None:
        webhooks = [webhook async for webhook in client.list_webhooks()]
        if context.as_json:
            for webhook in webhooks:
                context.emit(webhook)
        elif not webhooks:
            echo("no webhooks; create one: tenure webhooks create NAME URL", err=True)
        else:
            show_all(context, webhooks)

    context.run(work)


@webhooks.command()
@_webhook
@pass_context
def get(context: Context, webhook: str) -> None:
    """Show WEBHOOK, how it does, and what it missed."""

    async def work(client: Client) -> None:
        result = await client.get_webhook(webhook)
        if context.as_json:
            context.emit(result)
        else:
            show_webhook(context, result)

    context.run(work)


@webhooks.command()
@_webhook
@click.option("--reason", required=True, help="Why; it is shown to others.")
@pass_context
def pause(context: Context, webhook: str, reason: str) -> None:
    """Send nothing to WEBHOOK. What happens meanwhile is told when it goes on, while changes are kept."""

    async def work(client: Client) -> None:
        request = pb.PauseWebhookRequest(webhook=webhook, reason=reason)
        paused = (await client.webhooks.PauseWebhook(request)).webhook
        _tell(context, paused, f"{paused.name} is paused: {one_line(paused.pause_reason, 200)}")

    context.run(work)


@webhooks.command()
@_webhook
@pass_context
def resume(context: Context, webhook: str) -> None:
    """Go on with WEBHOOK where it was paused."""

    async def work(client: Client) -> None:
        resumed = (await client.webhooks.ResumeWebhook(pb.ResumeWebhookRequest(webhook=webhook))).webhook
        _tell(context, resumed, f"{resumed.name} goes on")

    context.run(work)


@webhooks.command(short_help="Sign with another secret from now on.")
@_webhook
@click.option("--secret", default="", help="whsec_…; without it one is made.")
@click.option(
    "--overlap", type=DURATION, default=None, help="How long the old one signs too, 0s to 168h. Default: 24h."
)
@pass_context
def rotate(context: Context, webhook: str, secret: str, overlap: float | None) -> None:
    """Sign with another secret, printed once, and for a while with the old one beside it."""
    request = pb.RotateWebhookSecretRequest(
        webhook=webhook, secret=secret, overlap=None if overlap is None else duration(overlap)
    )

    async def work(client: Client) -> None:
        rotated = await client.rotate_secret(request)
        if context.as_json:
            context.emit(rotated)
        else:
            echo(rotated.secret)

    context.run(work)


@webhooks.command()
@_webhook
@pass_context
def delete(context: Context, webhook: str) -> None:
    """Delete WEBHOOK with its deliveries."""

    async def work(client: Client) -> None:
        if not (await client.webhooks.DeleteWebhook(pb.DeleteWebhookRequest(webhook=webhook))).deleted:
            raise NotFound(f"there is no webhook {webhook}", reason="WEBHOOK_NOT_FOUND")
        if context.as_json:
            context.emit({"webhook": webhook, "deleted": True})
        else:
            echo(f"{webhook} is deleted")

    context.run(work)


@webhooks.command()
@_webhook
@pass_context
def test(context: Context, webhook: str) -> None:
    """Send WEBHOOK an event of type webhook.test."""

    async def work(client: Client) -> None:
        sent = (await client.webhooks.TestWebhook(pb.TestWebhookRequest(webhook=webhook))).delivery
        if context.as_json:
            context.emit(sent)
            return
        echo(sent.delivery_id)
        echo(f"What became of it: tenure webhooks deliveries {webhook}", err=True)

    context.run(work)


@webhooks.command(short_help="Show what was and is to be sent to WEBHOOK.")
@_webhook
@click.option(
    "--state", "states", type=click.Choice(list(_STATES)), multiple=True, help="Only these; `dead` is given up."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@pass_context
def deliveries(context: Context, webhook: str, states: tuple[str, ...], limit: int) -> None:
    """Show what is to be sent to WEBHOOK, what was given up, and the newest of what was received."""
    wanted = [DELIVERY_STATES.to_wire(_STATES[state]) for state in states]

    async def work(client: Client) -> None:
        listed = [one async for one in client.list_deliveries(webhook, wanted, limit=limit)]
        if context.as_json:
            for one in listed:
                context.emit(one)
        elif not listed:
            echo("no deliveries", err=True)
        else:
            show_deliveries(context, listed)

    context.run(work)


@webhooks.command(short_help="Send dead letters again.")
@_webhook
@_letter
@_all
@pass_context
def replay(context: Context, webhook: str, delivery_id: str, every: bool) -> None:
    """Give one dead letter of WEBHOOK, or all, all their tries again."""
    _one_or_all(delivery_id, every=every)

    async def work(client: Client) -> None:
        count = await client.replay_deliveries(webhook, delivery_id)
        _tell_count(context, "replayed", count, delivery_id)

    context.run(work)


@webhooks.command(short_help="Forget dead letters.")
@_webhook
@_letter
@_all
@pass_context
def discard(context: Context, webhook: str, delivery_id: str, every: bool) -> None:
    """Forget one dead letter of WEBHOOK, or all, for good."""
    _one_or_all(delivery_id, every=every)

    async def work(client: Client) -> None:
        count = await client.discard_deliveries(webhook, delivery_id)
        _tell_count(context, "discarded", count, delivery_id)

    context.run(work)


def _one_or_all(delivery_id: str, *, every: bool) -> None:
    if bool(delivery_id) == every:
        raise click.UsageError("name one DELIVERY, or say --all")


def _tell_count(context: Context, done: str, count: int, delivery_id: str) -> None:
    if delivery_id and not count:
        raise WrongState(f"the delivery {delivery_id} is no dead letter", reason="DELIVERY_NOT_DEAD")
    if context.as_json:
        facts: dict[str, Any] = {done: count}
        context.emit(facts)
    else:
        echo(f"{count_text(count, 'dead letter')} {done}")


def _tell(context: Context, webhook: pb.Webhook, message: str) -> None:
    if context.as_json:
        context.emit(webhook)
    else:
        echo(message)
