"""`tenure tasks plans`: what the plans of a task's tree have left, and the early end of one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, harmless, make_table, seconds_text, short_id
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_pb2
from tenure.wire.call_plans import plan_to_domain


@click.command(short_help="List the plans of TASK's tree, or end one early.")
@task_argument
@click.option("--end", metavar="PLAN", help="End this plan: the id, or its part after the slash.")
@click.option("--reason", default="", help="Why it ends; it is recorded.")
@with_client
async def plans(context: Context, client: Client, task: str, end: str | None, reason: str) -> None:
    """List the plans of TASK's tree: the later calls that an approval allowed, and what is left of each.

    With --end, end one before its time. After the answer no call runs by the plan any more; the calls that it would
    have allowed wait for an approval again. Who may approve may end.
    """
    if bool(end) != bool(reason):
        raise click.UsageError("give --end and --reason together")
    task_id = await find_task(client, task)
    listed = (await client.tasks.ListCallPlans(api.ListCallPlansRequest(task_id=task_id))).plans
    if not end:
        context.show_all(listed, _show_plans, none="no answer approved a plan in the task's tree")
        return
    ids = [one.plan.plan_id for one in listed if end in {one.plan.plan_id, one.plan.plan_id.rpartition("/")[2]}]
    if len(ids) > 1:
        raise click.UsageError(f"--end {end}: several plans have this id; give one of {', '.join(ids)}")
    request = api.EndCallPlanRequest(task_id=task_id, plan_id=ids[0] if ids else end, reason=reason)
    ended = (await client.tasks.EndCallPlan(request)).plan
    context.say(ended, f"ended: {ended.plan.plan_id}, after {ended.calls:,} of {ended.plan.count:,} calls")


def _show_plans(context: Context, listed: Sequence[tool_pb2.CountedPlan]) -> None:
    table = make_table("PLAN", "USED", "LEFT", "SUM", "SUM LEFT", "ENDS", "BY", "CALLS")
    for one in listed:
        task_id, _, wait_id = one.plan.plan_id.rpartition("/")
        cells = (
            f"{short_id(task_id)}/{wait_id}",
            f"{one.calls:,}",
            f"{one.calls_left:,}",
            one.total if one.plan.sum_of else "",
            one.total_left,
            _until(one.plan),
            one.plan.approved_by,
            plan_to_domain(one.plan).describe(),
        )
        table.add_row(*(Text(harmless(cell)) for cell in cells))
        if one.HasField("early_end_time"):
            why = f"ended {ago(one.early_end_time)} by {one.ended_by}: {one.end_reason}"
            table.add_row(*[Text("")] * 7, Text(harmless(why)))
    context.console.print(table)


def _until(plan: tool_pb2.CallPlan) -> str:
    left_seconds = plan.end_time.seconds - time.time()
    return f"in {seconds_text(left_seconds)}" if left_seconds > 0 else ago(plan.end_time)
