"""`tenure admin requeue`, `grant-budget`, `close-out`, `transfer` and `drain`: what operators do, and say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.output import echo
from tenure.cli.parameters import DOLLARS, find_task, task_argument
from tenure.cli.words import caps_text, short_id, why
from tenure.client import Client
from tenure.domain.epochs import describe_epoch
from tenure.v1 import task_pb2
from tenure.wire.enums import state_name

F = TypeVar("F", bound=Callable[..., Any])

_ENDS: Final = {
    "failed": task_pb2.TASK_STATE_FAILED,
    "timed-out": task_pb2.TASK_STATE_TIMED_OUT,
    "cancelled": task_pb2.TASK_STATE_CANCELLED,
}

reason_option = click.option("--reason", required=True, help="Why, in your words; it is recorded.")


@click.command(short_help="Let an ended task go on as its next attempt.")
@task_argument
@reason_option
@click.option("--extra-tokens", type=click.IntRange(min=0), default=0, help="Raise its cap by so many tokens.")
@click.option("--extra-steps", type=click.IntRange(min=0), default=0, help="Raise its limit by so many steps.")
@click.option("--extra-dollars", type=DOLLARS, default=0, help="Raise its cap in money by so much.")
@pass_context
def requeue(context: Context, task: str, reason: str, extra_tokens: int, extra_steps: int, extra_dollars: int) -> None:
    """Put TASK, which ended without success, back into the queue: its next attempt goes on from what is recorded.

    A task that waits for its retry is queued at once.
    """

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        queued = await client.requeue(
            task_id, reason, extra_tokens=extra_tokens, extra_steps=extra_steps, extra_nano_usd=extra_dollars
        )
        if context.as_json:
            context.emit(queued)
        else:
            echo(f"{short_id(task_id)} is queued · attempt {queued.attempt}, goes on after step {queued.step}")

    context.run(work)


@click.command("grant-budget", short_help="Let a task and its sub-agents spend more.")
@task_argument
@reason_option
@click.option("--tokens", type=click.IntRange(min=0), default=0, help="Raise the cap by so many tokens.")
@click.option("--dollars", type=DOLLARS, default=0, help="Raise the cap in money by so much, for example 0.50.")
@pass_context
def grant_budget(context: Context, task: str, reason: str, tokens: int, dollars: int) -> None:
    """Raise the caps of TASK's whole tree, which are its root's. A root that ended as COST_EXCEEDED goes on."""
    if not tokens and not dollars:
        raise click.UsageError("nothing is granted: give --tokens or --dollars")

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        root = await client.grant_budget(task_id, reason, extra_tokens=tokens, extra_nano_usd=dollars)
        if context.as_json:
            context.emit(root)
        else:
            state = state_name(root.state)
            echo(f"{short_id(root.task_id)} may use {caps_text(root.budget)}; it is {state} now")

    context.run(work)


@click.command("close-out", short_help="End a task, with a state and a result of yours.")
@task_argument
@reason_option
@click.option("--state", type=click.Choice(list(_ENDS)), default="failed", show_default=True, help="How it ends.")
@click.option("--result", default="", help="The result it ends with. Default: the agent's last words.")
@pass_context
def close_out(context: Context, task: str, reason: str, state: str, result: str) -> None:
    """Ask for TASK's end as `tenure cancel` does, with a state and a result of your choice."""

    async def work(client: Client) -> None:
        asked = await client.close_out(await find_task(client, task), _ENDS[state], reason, result)
        if context.as_json:
            context.emit(asked)
        elif asked.HasField("end_time"):
            echo(f"{short_id(asked.task_id)} has ended: {why(asked.state, asked.reason, asked.message)}")
        else:
            now = why(asked.state, "", "")
            echo(f"{short_id(asked.task_id)} will end as {state.upper().replace('-', '_')}; it is {now} now")

    context.run(work)


@click.command(short_help="Take a running task from its worker.")
@task_argument
@reason_option
@click.option("--to", "to_worker_id", default="", metavar="WORKER", help="Where it is to go on. Default: any other.")
@pass_context
def transfer(context: Context, task: str, reason: str, to_worker_id: str) -> None:
    """Take TASK from the worker that holds it. Another one goes on from the last commit.

    A worker named with --to has 10 s to take it; then anybody may.
    """

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        taken = await client.transfer(task_id, reason, to_worker_id)
        if context.as_json:
            context.emit(taken)
        elif taken.owner:
            echo(f"{short_id(task_id)} is held by {taken.owner}, epoch {describe_epoch(taken.epoch)}")
        else:
            echo(f"{short_id(task_id)} is {why(taken.state, taken.reason, taken.message)}")

    context.run(work)


@click.command(short_help="Tell a worker to give back all it holds.")
@click.argument("worker")
@reason_option
@pass_context
def drain(context: Context, worker: str, reason: str) -> None:
    """Tell WORKER to give back all it holds and to take nothing more, until it is started anew."""

    async def work(client: Client) -> None:
        told = await client.drain(worker, reason)
        for one in told.workers:
            if context.as_json:
                context.emit(one)
            else:
                echo(f"{one.worker_id} is told to drain; it takes no more tasks until it is started anew")

    context.run(work)
