"""`tenure tasks undo` lists the effects of a task, and creates the task that undoes them."""

from __future__ import annotations

from typing import Final

import click
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import arguments_text, harmless, make_list, short_id
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.questions import confirm, is_interactive
from tenure.cli.watch import watch_task
from tenure.client import Client
from tenure.v1 import task_service_pb2 as api

_CAN: Final = api.UNDO_VERDICT_CAN_BE_UNDONE


@click.command(short_help="Undo the effects of TASK.")
@task_argument
@click.option(
    "--since",
    "since_step",
    type=click.IntRange(min=0),
    default=0,
    metavar="STEP",
    help="Only effects of this step and later ones.",
)
@click.option("--go-on", is_flag=True, help="Go on with the next effect after a compensation that failed.")
@click.option("--dry-run", is_flag=True, help="Only list the effects.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--request-id",
    default="",
    help="Makes the command safe to repeat: a repeat with the same id creates no second undo.",
)
@click.option("--watch", "watched", is_flag=True, help="Show the steps of the undo until it ends.")
@with_client
async def undo(
    context: Context,
    client: Client,
    /,
    task: str,
    since_step: int,
    go_on: bool,
    dry_run: bool,
    yes: bool,
    request_id: str,
    watched: bool,
) -> Exit:
    """Undo the effects of TASK by the compensations of its tools, the newest effect first.

    Lists the effects, with what can be undone and why the others cannot, and asks. Then creates a task that makes the
    compensations one after another, and prints its id. Each effect is undone once, however often you run the command;
    what an undo left or failed to undo, the next one undoes.
    """
    if not (yes or dry_run or is_interactive()):
        raise click.UsageError("outside of a terminal give --yes; --dry-run shows what would be done")
    task_id = await find_task(client, task)
    plan = await client.plan_undo(api.PlanUndoRequest(task_id=task_id, since_step=since_step))
    _show(context, plan, only_shows=dry_run)
    count = sum(effect.verdict == _CAN for effect in plan.effects)
    if dry_run:
        return Exit.OK
    if count and not plan.obstacle and not yes:
        await confirm(f"Undo {count} of {len(plan.effects)} effects?")
    request = api.UndoTaskRequest(
        request_id=request_id, task_id=task_id, since_step=since_step, go_on=go_on, plan_digest=plan.plan_digest
    )
    made = await client.undo(request)
    if context.as_json:
        context.emit(made)
    else:
        echo(made.task_id)
        if not watched:
            echo(f"Undoes {short_id(task_id)}. Watch it: tenure watch {short_id(made.task_id)}", err=True)
    return await watch_task(context, client, made.task_id) if watched else Exit.OK


def _show(context: Context, plan: api.PlanUndoResponse, *, only_shows: bool) -> None:
    """Prints the plan: to standard output if nothing else is printed there."""
    if context.as_json:
        if only_shows:
            context.emit(plan)
        return
    table = make_list("CALL", "TOOL", "UNDO", "BY")
    for effect in plan.effects:
        table.add_row(*_row(effect))
    if only_shows:
        context.console.print(table)
    else:
        for effect in plan.effects:
            echo("  ".join(map(str, _row(effect))), err=True)
    if not plan.effects:
        echo("The task has no effects.", err=True)
    if plan.declarations_unchecked:
        echo("The tool service does not answer: these are the declarations with which the task began.", err=True)
    if plan.obstacle:
        echo(f"Not now: {plan.obstacle}", err=True)


def _row(effect: api.TaskEffect) -> tuple[str, str, Text, Text]:
    can = effect.verdict == _CAN
    name = "yes" if can else api.UndoVerdict.Name(effect.verdict).removeprefix("UNDO_VERDICT_")
    changed = " (declared otherwise when the task began)" if effect.declaration_changed else ""
    by = f"{effect.undo_tool} {arguments_text(effect.undo_arguments_json)}{changed}" if can else effect.why
    return effect.call_id, harmless(effect.tool), Text(name, "green" if can else "yellow"), Text(harmless(by))
