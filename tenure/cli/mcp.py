"""`tenure mcp`: Tenure as a server of the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.parameters import DOLLARS, LABEL
from tenure.domain.budget import NANO_USD
from tenure.server_packages import server_packages


@click.command(short_help="Serve tasks to a client of the Model Context Protocol.")
@click.option(
    "--max-cost",
    type=DOLLARS,
    envvar="TENURE_MCP_MAX_COST",
    default="1.00",
    show_default=True,
    help="The most dollars of one submit, and its cap if the client names none.",
)
@click.option(
    "--no-max-cost",
    is_flag=True,
    help="Only the cap of the installation: for models without a price, such as those of the simulator.",
)
@click.option(
    "--approvals",
    is_flag=True,
    envvar="TENURE_MCP_APPROVALS",
    help="Clients may also answer waits for an approval, not only questions.",
)
@click.option("--agent", default="", envvar="TENURE_MCP_AGENT", help="Submit to this agent in Python.")
@click.option("--model", default="", envvar="TENURE_MCP_MODEL", help="The model of submits without --agent.")
@click.option("--queue", default="", envvar="TENURE_MCP_QUEUE", help="The queue of submits.")
@click.option("--label", "labels", type=LABEL, multiple=True, help="A label of submits, key=value; may be repeated.")
@pass_context
def mcp(
    context: Context,
    max_cost: int,
    no_max_cost: bool,
    approvals: bool,
    agent: str,
    model: str,
    queue: str,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """Serve the Model Context Protocol on standard input and output.

    A client such as an editor or another agent starts this program. Its tools submit tasks, read, cancel and answer
    them. The program keeps nothing: a task goes on when it ends, and the next one finds it. Needs the extra: pip
    install 'tenure[mcp]'.
    """
    if agent and model:
        raise click.UsageError("the code of an agent in Python chooses its model: give --agent or --model")
    with server_packages("`tenure mcp`", extra="mcp"):
        from edges.mcp_server.main import serve_stdio
        from edges.mcp_server.settings import McpServerSettings
        from tenure.sdk.client import Client

    context.check_options()
    cap = None if no_max_cost else Decimal(max_cost) / NANO_USD
    settings = McpServerSettings(cap, approvals, agent, model, queue, labels)

    async def serve() -> None:
        api_key = context.api_key or None
        async with Client(context.address, api_key=api_key, tenant=context.tenant, tls=context.tls) as client:
            await context.check(client.raw)
            await serve_stdio(client, settings)

    asyncio.run(serve())
