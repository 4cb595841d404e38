"""`tenure outbox`: submits in transactions of the caller's own Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import make_table, one_line
from tenure.cli.output import echo, echo_result
from tenure.domain.errors import Unavailable
from tenure.domain.outbound import is_clear_text
from tenure.server_packages import server_packages

if TYPE_CHECKING:
    from edges.outbox.rows import Outbox, OutboxRow

T = TypeVar("T")

MAX_LISTED: Final = 200
RECONNECT_SECONDS: Final = 2.0
DAY_SECONDS: Final = 86400.0
DSN = click.option(
    "--dsn", required=True, envvar="TENURE_OUTBOX_DSN", help="The database of your backend, as psql takes it."
)


@click.group(short_help="Submit in transactions of your own Postgres, and relay the submits.")
def outbox() -> None:
    """Submit tasks in transactions of your own Postgres.

    `tenure outbox sql` prints the table and the function, `tenure outbox relay` sends the rows to the gateway.
    Needs the extra: pip install 'tenure[server]'.
    """


@outbox.command(short_help="Print the SQL of the outbox.")
def sql() -> None:
    """Print the SQL that your database needs: tenure outbox sql | psql DSN."""
    with server_packages("`tenure outbox sql`", extra="server"):
        from edges.outbox.rows import schema

    echo_result(schema())


@outbox.command(short_help="Send the rows of the outbox to the gateway.")
@DSN
@click.option(
    "--url",
    required=True,
    envvar="TENURE_OUTBOX_URL",
    help="The gateway's HTTP port, for example http://127.0.0.1:8480.",
)
@click.option(
    "--keep-days", type=click.FloatRange(0), default=7.0, show_default=True, help="How long rows with a task stay."
)
@pass_context
def relay(context: Context, dsn: str, url: str, keep_days: float) -> None:
    """Send the rows of the outbox to the gateway until it is stopped.

    Several relays may share an outbox. A row waits however long the gateway is away; one that the gateway refuses stays
    for `tenure outbox list --refused`.
    """
    with server_packages("`tenure outbox relay`", extra="server"):
        from edges.outbox.relay import OutboxRelay, open_gateway
        from edges.outbox.rows import open_outbox

    context.check_options()
    given = context.api_key
    api_key = given if callable(given) else lambda: given
    if given and is_clear_text(url):
        raise click.BadParameter(f"{url}: an API key is sent to another machine by https only", param_hint="--url")

    try:
        gateway = open_gateway(url, context.tenant or "", context.tls)
    except OSError as error:
        raise click.ClickException(f"a file for TLS cannot be read: {error}") from None

    def report(text: str) -> None:
        echo(text, err=True)

    async def send() -> None:
        """Connects again whenever the database is lost."""
        async with gateway:
            while True:
                try:
                    async with open_outbox(dsn) as rows:
                        await OutboxRelay(rows, gateway, api_key, keep_days * DAY_SECONDS, report).run()
                except Unavailable as error:
                    report(error.message)
                await asyncio.sleep(RECONNECT_SECONDS)

    report(f"relays the outbox to {url}; stop it with Ctrl-C")
    asyncio.run(send())


def _run(dsn: str, work: Callable[[Outbox], Awaitable[T]]) -> T:
    with server_packages("`tenure outbox`", extra="server"):
        from edges.outbox.rows import open_outbox

    async def connected() -> T:
        async with open_outbox(dsn) as rows:
            return await work(rows)

    return asyncio.run(connected())


@outbox.command("list", short_help="List the rows that wait, or that were refused.")
@DSN
@click.option("--refused", is_flag=True, help="The rows that the gateway refused.")
@click.option("--limit", type=click.IntRange(1), default=MAX_LISTED, show_default=True, help="The most rows.")
@pass_context
def list_rows(context: Context, dsn: str, refused: bool, limit: int) -> None:
    """List the rows of the outbox that wait for the gateway, or that it refused, the oldest first."""
    rows = _run(dsn, lambda outbox: outbox.listed(limit, refused=refused))
    if context.as_json:
        for row in rows:
            context.emit(_json_of(row))
        return
    table = make_table("REQUEST ID", "SINCE", "ATTEMPTS", "PROBLEM", right=(2,))
    for row in rows:
        since = row.created_at.astimezone().strftime("%m-%d %H:%M:%S")
        table.add_row(one_line(row.request_id, 60), since, f"{row.attempts:,}", one_line(row.problem, 200))
    if rows:
        context.console.print(table)
    else:
        echo("no row was refused" if refused else "no row waits", err=True)


def _json_of(row: OutboxRow) -> dict[str, Any]:
    times = {name: None if at is None else at.isoformat() for name, at in row._asdict().items() if name.endswith("_at")}
    return {**row._asdict(), **times}


@outbox.command(short_help="Send a refused row again.")
@DSN
@click.argument("request_id")
def retry(dsn: str, request_id: str) -> None:
    """Send a row again that the gateway refused, after its cause is gone. Correct the row's `task` in SQL first."""
    if not _run(dsn, lambda outbox: outbox.retry(request_id)):
        raise click.ClickException(
            f"no refused row has the request id {request_id}: see `tenure outbox list --refused`"
        )
    echo(f"{request_id} is sent again")
