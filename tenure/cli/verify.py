"""`tenure admin verify`: checks tasks against the invariants of the checker."""

from __future__ import annotations

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.exit_codes import Exit
from tenure.cli.parameters import DURATION
from tenure.server_packages import server_packages


@click.command(short_help="Check TASKs against the invariants.")
@click.argument("tasks", metavar="[TASK]...", nargs=-1)
@click.option("--since", type=DURATION, help="Only tasks submitted in the last 90s, 10m, 2h, …")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Check at most this many, the newest first.",
)
@click.option("--invariants", is_flag=True, help="Also show which invariants were checked, and what others need.")
@click.option("--explain", is_flag=True, help="List the invariants, and check nothing.")
@pass_context
def verify(
    context: Context, tasks: tuple[str, ...], since: float | None, limit: int, invariants: bool, explain: bool
) -> None:
    """Check the ledger and the call records of TASKs, or of the newest tasks, against the invariants.

    Changes nothing; the tasks may run meanwhile. Prints one line for each violation, then what was checked.
    The exit code is 7 if an invariant is violated.
    """
    with server_packages("`tenure admin verify`", extra="server"):
        from tenure.cli import verify_report
    if explain:
        verify_report.explain(context)
        return
    report = context.run(
        lambda client: verify_report.examine(
            context, client, verify_report.chosen(client, tasks, since, limit), skip_pruned=not tasks
        )
    )
    verify_report.print_summary(context, report, invariants=invariants)
    if report.violations:
        click.get_current_context().exit(Exit.INVARIANT_VIOLATED)
