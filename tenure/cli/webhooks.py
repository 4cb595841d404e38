"""`tenure webhooks`: what happens to tasks, told to HTTP endpoints."""

from __future__ import annotations

from typing import Any, Final

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, LABEL
from tenure.cli.webhooks_shown import show_all, show_deliveries, show_webhook
from tenure.cli.words import count_text, one_line
from tenure.client import Client
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.webhooks import DeliveryState, unknown_events
from tenure.v1 import task_pb2
from tenure.v1 import webhook_service_pb2 as pb
from tenure.wire.times import duration
from tenure.wire.webhooks import DELIVERY_STATES

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
    asked = pb.CreateWebhookRequest(name=name, url=url, event_types=events, filter=wanted, secret=secret)

    async def work(client: Client) -> None:
        made = await client.create_webhook(asked)
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
        found = [webhook async for webhook in client.list_webhooks()]
        if context.as_json:
            for webhook in found:
                context.emit(webhook)
        elif not found:
            echo("no webhooks; create one: tenure webhooks create NAME URL", err=True)
        else:
            show_all(context, found)

    context.run(work)


@webhooks.command()
@_webhook
@pass_context
def get(context: Context, webhook: str) -> None:
    """Show WEBHOOK, how it does, and what it missed."""

    async def work(client: Client) -> None:
        found = await client.get_webhook(webhook)
        if context.as_json:
            context.emit(found)
        else:
            show_webhook(context, found)

    context.run(work)


@webhooks.command()
@_webhook
@click.option("--reason", required=True, help="Why; it is shown to others.")
@pass_context
def pause(context: Context, webhook: str, reason: str) -> None:
    """Send nothing to WEBHOOK. What happens meanwhile is told when it goes on, while changes are kept."""

    async def work(client: Client) -> None:
        asked = pb.PauseWebhookRequest(webhook=webhook, reason=reason)
        paused = (await client.webhooks.PauseWebhook(asked)).webhook
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
    asked = pb.RotateWebhookSecretRequest(
        webhook=webhook, secret=secret, overlap=None if overlap is None else duration(overlap)
    )

    async def work(client: Client) -> None:
        rotated = await client.rotate_secret(asked)
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
        found = [one async for one in client.list_deliveries(webhook, wanted, limit=limit)]
        if context.as_json:
            for one in found:
                context.emit(one)
        elif not found:
            echo("no deliveries", err=True)
        else:
            show_deliveries(context, found)

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


def _tell(context: Context, webhook: pb.Webhook, words: str) -> None:
    if context.as_json:
        context.emit(webhook)
    else:
        echo(words)
