"""`tenure webhooks`: endpoints, Slack and e-mail addresses that receive the changes of tasks, and their deliveries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final

import click
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import ago, count_text, harmless, make_grid, make_table, one_line, seconds_text
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, LABEL, find_task
from tenure.client import Client
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.states import Reason
from tenure.domain.webhooks import DeliveryState, unknown_events
from tenure.sdk.operations_info import READERS
from tenure.sdk.task_filter import source_of, task_filter
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.common import duration, moment, unix_seconds
from tenure.wire.webhook_service import DELIVERY_STATES, GAP_REASONS, WEBHOOK_KINDS, new_secret, with_secret

# Webhooks as text.

_RECENT_SECONDS: Final = 24 * 3600.0
"""How long a webhook gap is shown as the state of the webhook."""
_FOR_QUOTA: Final = "waiting for the tenant's quota of e-mails an hour: tenure tenants get"
POLL_SECONDS: Final = 0.3
_STYLES: Final = {DeliveryState.DELIVERED: "green", DeliveryState.PENDING: "yellow", DeliveryState.DEAD: "red"}


def show_all(context: Context, webhooks: Iterable[pb.Webhook]) -> None:
    """Prints a table of webhooks."""
    table = make_table("NAME", "KIND", "STATE", "PENDING", "DEAD", "DELIVERED", "LAST", "TO", right=(3, 4, 5))
    for one in webhooks:
        counts = f"{one.pending_deliveries:,}", f"{one.dead_deliveries:,}", f"{one.delivered:,}"
        last, target = ago(one.last_delivered_time), one_line(_target(one), 120)
        table.add_row(one.name, _kind(one), _state(one), *counts, last, target)
    context.console.print(table)


def _kind(webhook: pb.Webhook) -> str:
    return WEBHOOK_KINDS.to_domain(webhook.kind).value.lower()


def _target(webhook: pb.Webhook) -> str:
    return webhook.url or ", ".join(webhook.email_addresses)


def _state(webhook: pb.Webhook) -> Text:
    if webhook.paused:
        return Text(f"paused ({webhook.pause_code})", "yellow")
    if any(time.time() - unix_seconds(gap.to_time) < _RECENT_SECONDS for gap in webhook.gaps):
        return Text("missed changes", "red")
    if webhook.problem:
        return Text("failing", "red")
    return Text("waits for the quota", "yellow") if webhook.held_deliveries else Text("ok", "green")


def show_webhook(context: Context, webhook: pb.Webhook) -> None:
    """Prints one webhook with its gaps."""
    paused = f"{webhook.pause_code}: {one_line(webhook.pause_reason, 200)} ({webhook.pause_actor})"
    overlap = f"also signs until {moment(webhook.old_secret_until_time):%Y-%m-%d %H:%M} UTC"
    last = f", the last {ago(webhook.last_delivered_time)}" if webhook.HasField("last_delivered_time") else ""
    rows: list[tuple[str, str | Text]] = [
        ("webhook", f"{webhook.name} · {webhook.webhook_id}"),
        ("kind", _kind(webhook)),
        ("to", _target(webhook)),
        ("events", ", ".join(webhook.event_types) or "ends, waits and warnings"),
        ("tasks", _tasks(webhook)),
        ("answers", "has links that answer waits" if webhook.answer_links else ""),
        ("state", _state(webhook)),
        ("paused", paused if webhook.paused else ""),
        ("problem", Text(one_line(webhook.problem, 300), "red") if webhook.problem else ""),
        ("delivered", f"{webhook.delivered:,}{last}"),
        ("pending", f"{webhook.pending_deliveries:,}"),
        ("held", f"{webhook.held_deliveries:,}, {_FOR_QUOTA}" if webhook.held_deliveries else ""),
        ("dead", f"{webhook.dead_deliveries:,}" if webhook.dead_deliveries else ""),
        ("old secret", overlap if webhook.HasField("old_secret_until_time") else ""),
        *[("gap", Text(_gap(gap), "red")) for gap in webhook.gaps],
    ]
    context.console.print(make_grid(rows))


def _tasks(webhook: pb.Webhook) -> str:
    """Returns the filter: its labels, then its other fields by name."""
    shown = READERS[pb.Webhook](webhook).filter.to_json()
    texts = [f"{key}={value}" for key, value in sorted(shown.pop("label").items())]
    given = [(name, value) for name, value in shown.items() if value not in (None, "", [])]
    texts += [f"{name} {' or '.join(value) if isinstance(value, list) else value}" for name, value in given]
    return ", ".join(harmless(text) for text in texts)


def _gap(gap: pb.WebhookGap) -> str:
    try:
        reason = GAP_REASONS.to_domain(gap.reason).value
    except ValueError:
        reason = f"REASON_{gap.reason}"
    span = f"{moment(gap.from_time):%Y-%m-%d %H:%M:%S} to {moment(gap.to_time):%Y-%m-%d %H:%M:%S} UTC"
    return f"may have missed changes from {span}: {reason}"


def show_deliveries(context: Context, deliveries: Iterable[pb.WebhookDelivery]) -> None:
    """Prints a table of deliveries, in the given order."""
    table = make_table("DELIVERY", "EVENT", "TASK", "STATE", "ATTEMPTS", "CREATED", "NEXT", "ERROR", right=(4,))
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
            one_line(_hold(one) or one.last_error, 120),
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
    return "-" if delivery.HasField("end_time") else "after an earlier one"


def _hold(delivery: pb.WebhookDelivery) -> str:
    """Returns why the delivery waits although no attempt failed; empty: nothing holds it."""
    if delivery.hold_reason == Reason.TENANT_QUOTA:
        return _FOR_QUOTA
    return delivery.hold_reason


_STATES: Final = {state.value.lower(): state for state in DeliveryState}

_webhook = click.argument("webhook", metavar="WEBHOOK")
_delivery = click.argument("delivery_id", metavar="[DELIVERY]", required=False, default="")
_all = click.option("--all", "every", is_flag=True, help="All dead deliveries of the webhook.")


@click.group(short_help="Send the changes of tasks by HTTP, to Slack and by e-mail.")
def webhooks() -> None:
    """Send the changes of tasks to HTTP endpoints, to Slack and by e-mail. WEBHOOK is a name or an id."""


@webhooks.command(short_help="Create a webhook, and print its secret once.")
@click.argument("name")
@click.argument("url", required=False, default="")
@click.option("--slack", metavar="URL", default="", help="Send messages to this incoming webhook of Slack instead.")
@click.option(
    "--email",
    metavar="ADDRESS[,ADDRESS]",
    default="",
    help="Send e-mail to these addresses instead.",
)
@click.option(
    "--event",
    "events",
    multiple=True,
    metavar="TYPE",
    help="An event type: task.succeeded, task.running, task.* and so on; may be repeated. Default: ends, waits and"
    " warnings.",
)
@click.option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    help="key=value: only changes of tasks with this label; may be repeated.",
)
@click.option("--queue", default="", help="Only changes of tasks of this queue.")
@click.option("--source", default="", metavar="KIND[/ID[/RUN]]", help="Only changes of tasks of this source.")
@click.option("--root", default="", metavar="TASK", help="Only changes of this root task and its sub-agents.")
@click.option("--secret", default="", help="The secret, whsec_…. Default: a new one.")
@click.option(
    "--answer-links",
    is_flag=True,
    help="Send links that answer waits: who reads the channel or the mailbox can answer. See docs/approvals.md.",
)
@with_client
async def create(
    context: Context,
    client: Client,
    /,
    name: str,
    url: str,
    slack: str,
    email: str,
    events: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    queue: str,
    source: str,
    root: str,
    secret: str,
    answer_links: bool,
) -> None:
    """Create the webhook NAME, which sends the changes of tasks from now on: to URL, to Slack or by e-mail.

    Prints the secret, this once only: the receiver verifies the signatures with it. Slack and e-mail need no secret.
    """
    if sum(map(bool, (url, slack, email))) != 1:
        raise click.UsageError("give one of URL, --slack and --email")
    wanted = task_filter(
        labels=dict(labels),
        queue=queue,
        source=source_of(source) if source else None,
        root_task_id=await find_task(client, root) if root else "",
    )
    kind = pb.WEBHOOK_KIND_EMAIL if email else pb.WEBHOOK_KIND_SLACK if slack else pb.WEBHOOK_KIND_STANDARD
    request = pb.CreateWebhookRequest(
        name=name,
        kind=kind,
        url=url or slack,
        email_addresses=[address.strip() for address in email.split(",")] if email else [],
        event_types=events,
        filter=wanted,
        secret=secret,
        answer_links=answer_links,
    )

    created = await client.webhooks.CreateWebhook(with_secret(request))
    for unknown in unknown_events(events):
        echo(f"warning: no event type matches {unknown}; check its spelling", err=True)
    if context.as_json:
        context.emit(created)
        return
    if created.secret:
        echo(created.secret)
    echo(f"{name} sends to {_target(created.webhook)}. Try it: tenure webhooks test {name}", err=True)


@webhooks.command("list")
@with_client
async def list_webhooks(context: Context, client: Client) -> None:
    """List all webhooks, by name."""
    webhooks = client.items(client.webhooks.ListWebhooks, pb.ListWebhooksRequest(), lambda page: page.webhooks)
    await context.show_each(webhooks, show_all, none="no webhooks; create one: tenure webhooks create NAME URL")


@webhooks.command()
@_webhook
@with_client
async def get(context: Context, client: Client, webhook: str) -> None:
    """Show WEBHOOK: its state, its deliveries and its gaps."""
    result = (await client.webhooks.GetWebhook(pb.GetWebhookRequest(webhook=webhook))).webhook
    context.show(result, show_webhook)


@webhooks.command()
@_webhook
@click.option("--reason", required=True, help="Why; recorded and shown to others.")
@with_client
async def pause(context: Context, client: Client, webhook: str, reason: str) -> None:
    """Pause WEBHOOK: nothing is sent. Changes of the pause are sent after it, as long as they are retained."""
    request = pb.PauseWebhookRequest(webhook=webhook, reason=reason)
    paused = (await client.webhooks.PauseWebhook(request)).webhook
    context.say(paused, f"{paused.name} is paused: {one_line(paused.pause_reason, 200)}")


@webhooks.command()
@_webhook
@with_client
async def resume(context: Context, client: Client, webhook: str) -> None:
    """Resume WEBHOOK where it was paused."""
    resumed = (await client.webhooks.ResumeWebhook(pb.ResumeWebhookRequest(webhook=webhook))).webhook
    context.say(resumed, f"{resumed.name} is resumed")


@webhooks.command(short_help="Replace the secret of WEBHOOK.")
@_webhook
@click.option("--secret", default="", help="The secret, whsec_…. Default: a new one.")
@click.option(
    "--overlap",
    type=DURATION,
    default=None,
    help="How long requests are also signed with the old secret, 0s to 168h. Default: 24h.",
)
@with_client
async def rotate(context: Context, client: Client, webhook: str, secret: str, overlap: float | None) -> None:
    """Replace the secret of WEBHOOK, and print the new one, this once only.

    For the time of --overlap requests are signed with both secrets.
    """
    request = pb.RotateWebhookSecretRequest(
        webhook=webhook, secret=secret or new_secret(), overlap=None if overlap is None else duration(overlap)
    )

    rotated = await client.webhooks.RotateWebhookSecret(request)
    context.say(rotated, rotated.secret)


@webhooks.command()
@_webhook
@with_client
async def delete(context: Context, client: Client, webhook: str) -> None:
    """Delete WEBHOOK and its deliveries."""
    if not (await client.webhooks.DeleteWebhook(pb.DeleteWebhookRequest(webhook=webhook))).deleted:
        raise NotFound(f"webhook {webhook} not found", reason="WEBHOOK_NOT_FOUND")
    context.say({"deleted": True}, f"{webhook} is deleted")


@webhooks.command(short_help="Send a test event to WEBHOOK, and report its delivery.")
@_webhook
@click.option(
    "--wait",
    "wait_seconds",
    type=DURATION,
    default="15s",
    show_default=True,
    help="How long to wait for the first attempt; 0s: not at all.",
)
@with_client
async def test(context: Context, client: Client, webhook: str, wait_seconds: float) -> Exit:
    """Send a test event, of type webhook.test, to WEBHOOK, and report the result of its first attempt.

    Prints the id of the delivery. Fails if the delivery is not received.
    """
    sent = (await client.webhooks.TestWebhook(pb.TestWebhookRequest(webhook=webhook))).delivery
    if not context.as_json:
        echo(sent.delivery_id)
    if wait_seconds:
        sent = await _attempted(client, webhook, sent, time.monotonic() + wait_seconds)
    if context.as_json:
        context.emit(sent)
    else:
        echo(_result(webhook, sent), err=True)
    return _exit_of(sent) if wait_seconds else Exit.OK


def _exit_of(delivery: pb.WebhookDelivery) -> Exit:
    if delivery.state == pb.WEBHOOK_DELIVERY_STATE_DELIVERED:
        return Exit.OK
    return Exit.NOT_YET if delivery.state == pb.WEBHOOK_DELIVERY_STATE_PENDING else Exit.REFUSED


async def _attempted(client: Client, webhook: str, sent: pb.WebhookDelivery, until: float) -> pb.WebhookDelivery:
    """Returns the delivery after its first attempt, or when it is held, or as it is at `until`."""
    while not (sent.last_error or sent.hold_reason or sent.HasField("end_time")) and time.monotonic() < until:
        await asyncio.sleep(POLL_SECONDS)
        async with aclosing(_deliveries(client, webhook, limit=50)) as listed:
            sent = await anext((one async for one in listed if one.delivery_id == sent.delivery_id), sent)
    return sent


def _deliveries(
    client: Client, webhook: str, states: Sequence[pb.WebhookDeliveryState.ValueType] = (), *, limit: int
) -> AsyncGenerator[pb.WebhookDelivery]:
    """Yields at most `limit` deliveries of a webhook, the newest first."""
    request = pb.ListWebhookDeliveriesRequest(webhook=webhook, states=states)
    return client.items(client.webhooks.ListWebhookDeliveries, request, lambda page: page.deliveries, limit=limit)


def _result(webhook: str, delivery: pb.WebhookDelivery) -> str:
    if delivery.state == pb.WEBHOOK_DELIVERY_STATE_DELIVERED:
        accepted = ", ".join(delivery.accepted_addresses) or "the endpoint"
        return f"delivered: accepted by {one_line(accepted, 300)} ({delivery.last_status_code})"
    if delivery.hold_reason:
        return f"not sent yet: {one_line(_hold(delivery), 300)}; the next attempt is {_next(delivery)}"
    error = one_line(delivery.last_error, 300)
    if delivery.state == pb.WEBHOOK_DELIVERY_STATE_DEAD:
        return f"not delivered, and not tried again: {error}"
    if error:
        return f"not delivered yet: {error}; the next attempt is {_next(delivery)}"
    return f"See its delivery: tenure webhooks deliveries {webhook}"


@webhooks.command(short_help="List the deliveries of WEBHOOK.")
@_webhook
@click.option(
    "--state",
    "states",
    type=click.Choice(list(_STATES)),
    multiple=True,
    help="Only deliveries in this state; may be repeated. A dead one was given up.",
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@with_client
async def deliveries(context: Context, client: Client, webhook: str, states: tuple[str, ...], limit: int) -> None:
    """List the deliveries of WEBHOOK: all pending and dead ones, and the newest delivered ones."""
    delivery_states = [DELIVERY_STATES.to_wire(_STATES[state]) for state in states]

    listed = _deliveries(client, webhook, delivery_states, limit=limit)
    await context.show_each(listed, show_deliveries, none="no deliveries")


@webhooks.command(short_help="Send dead deliveries again.")
@_webhook
@_delivery
@_all
@with_client
async def replay(context: Context, client: Client, webhook: str, delivery_id: str, every: bool) -> None:
    """Send one dead DELIVERY of WEBHOOK again, or with --all every one. Each gets all its attempts again."""
    request = pb.ReplayWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
    await _one_or_all(context, client.webhooks.ReplayWebhookDeliveries, request, "replayed", every=every)


@webhooks.command(short_help="Delete dead deliveries.")
@_webhook
@_delivery
@_all
@with_client
async def discard(context: Context, client: Client, webhook: str, delivery_id: str, every: bool) -> None:
    """Delete one dead DELIVERY of WEBHOOK, or with --all every one."""
    request = pb.DiscardWebhookDeliveriesRequest(webhook=webhook, delivery_id=delivery_id)
    await _one_or_all(context, client.webhooks.DiscardWebhookDeliveries, request, "discarded", every=every)


async def _one_or_all(
    context: Context, act: Callable[[Any], Awaitable[Any]], request: Any, done: str, *, every: bool
) -> None:
    """Acts on one dead delivery, or on all, a page in each request. `done`: the field of the answer that counts."""
    if bool(request.delivery_id) == every:
        raise click.UsageError("give one DELIVERY, or --all")
    count = 0
    while acted := getattr(answer := await act(request), done):
        count += acted
        if request.delivery_id or not answer.remaining:
            break
    if request.delivery_id and not count:
        raise WrongState(
            f"the delivery {request.delivery_id} is not dead; `tenure webhooks deliveries` shows the states",
            reason="DELIVERY_NOT_DEAD",
        )
    context.say({done: count}, f"{count_text(count, 'dead delivery', 'dead deliveries')} {done}")
