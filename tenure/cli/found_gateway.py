"""Whose gateway a command has found at the usual port: it asks before it talks to the stack of another folder."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import printable
from tenure.cli.output import echo
from tenure.cli.questions import is_confirmed, is_interactive
from tenure.domain.errors import TenureError, Unavailable

if TYPE_CHECKING:
    from tenure.cli.context import Context
    from tenure.client import Client


class StackOfAnotherFolder(click.ClickException):
    """The gateway that a command found is that of another folder's stack."""

    exit_code = Exit.USAGE


async def check_found(context: Context, client: Client) -> None:
    """Says which gateway answers, and asks a person about the stack of another folder.

    Raises StackOfAnotherFolder for a no. A program gets no question: it is refused, and names the gateway.
    """
    from tenure.v1.admin_service_pb2 import GetCallerRequest

    try:
        caller = await client.admin.GetCaller(GetCallerRequest())
    except Unavailable:
        client.call_once()
        return
    except TenureError:  # the command meets the same, and says it
        return
    asks = not context.as_json and is_interactive()
    if not caller.stack_folder:
        if asks:
            echo(f"gateway {context.address}, installation {caller.installation}", err=True)
        return
    folder = printable(caller.stack_folder)
    whose = f"the gateway at {context.address} is that of the stack in {folder}"
    if asks and await is_confirmed(f"{whose}, which this folder did not start. Talk to it?"):
        return
    raise StackOfAnotherFolder(
        f"{whose}, and no `tenure dev` runs in this folder: start one here, or name that one, with --data "
        f"{shlex.quote(folder)}, --address {context.address} or TENURE_ADDRESS={context.address}"
    )
