"""`tenure tools receipt`, `tenure tools receipts` and `tenure receipts verify`: signed records of effects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from tenure.cli.context import Context, pass_context, with_client
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import count_text
from tenure.cli.output import echo, file_output
from tenure.cli.parameters import Typed, find_task, task_argument
from tenure.client import Client
from tenure.domain.audit import Head
from tenure.domain.errors import WrongState
from tenure.domain.receipts import BrokenReceiptsError, VerifiedReceipts, verify_receipts
from tenure.server_packages import extra_packages
from tenure.v1 import lease_service_pb2

CHAIN_BROKEN = "RECEIPT_CHAIN_BROKEN"


@click.command("receipt", short_help="Show the signed receipt of a call's effect.")
@task_argument
@click.argument("call")
@with_client
async def receipt(context: Context, client: Client, task: str, call: str) -> None:
    """Show the signed receipt of CALL of TASK: what was done, when, under which claim, and who approved it.

    With --json the receipt itself, one line, which `tenure receipts verify` verifies.
    """
    task_id = await find_task(client, task)
    line = "".join(await _lines(client.receipts(task_id, call)))
    if context.as_json:
        _write([line])
    else:
        for text in _shown(json.loads(line)):
            echo(text)


@click.command("receipts", short_help="Write the signed receipts of all effects of a task.")
@task_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write; an existing file is replaced. Default: standard output.",
)
@with_client
async def write_receipts(_context: Context, client: Client, task: str, output: Path | None) -> None:
    """Write the signed receipts of all effects of TASK, a line each, and the signed head of their chain.

    The file is complete up to the time of the head.
    """
    lines = await _lines(client.receipts(await find_task(client, task)))
    if output is None:
        _write(lines)
    else:
        _write_file(output, lines)


async def _lines(receipts: AsyncIterable[str]) -> list[str]:
    try:
        return [line async for line in receipts]
    except WrongState as error:
        if error.reason == CHAIN_BROKEN:
            _refuse(str(error))
        raise


def _write(lines: list[str]) -> None:
    """Writes the exact bytes that are signed, but not to a terminal."""
    write, end = file_output()
    for line in lines:
        write(f"{line}\n".encode())
    end()


def _write_file(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    echo(f"{path} ({count_text(len(lines) - 1, 'receipt')})")


def _shown(envelope: Mapping[str, Any]) -> list[str]:
    signed = envelope["receipt"]
    of_tools, ledger = signed["tool_service"], signed["ledger"]
    record, outcome = of_tools["record"], of_tools["outcome"]
    signature = f"signed {signed['sign_time']} with key {envelope['key_id']}"
    lines = [
        f"receipt {record['number']} of task {record['task']}, {signature}",
        f"call       {record['call']}, attempt {record['call_attempt']}, {record['tool']} ({record['effect_class']})",
        f"outcome    {outcome['status']} {outcome['detail']}".rstrip() + f", {record['finish_time']}",
        f"arguments  sha256 {record['arguments_sha256']}",
        f"content    sha256 {outcome['sha256']}",
        f"claim      epoch {record['epoch']}, {record['claim']}",
        f"key        {of_tools['idempotency_key']}",
    ]
    if approval := ledger.get("approval"):
        lines.append(f"approved   by {approval['actor']}, {approval['time']} (ledger, entry {approval['sequence']})")
    if resolution := ledger.get("resolution"):
        by, entry = f"{resolution['decision']} by {resolution['actor']}", resolution["sequence"]
        lines.append(f"resolved   {by}, {resolution['time']} (ledger, entry {entry})")
    return lines


@click.group()
def receipts() -> None:
    """Verify signed receipts of effects, without access to the installation."""


@receipts.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--keys",
    "keys_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The public keys: lines of `tenure --json leases keys`. Without it the gateway is asked.",
)
@click.option("--installation", default="", help="The installation that must have signed them.")
@click.option(
    "--noted",
    type=Typed("NUMBER:HASH", Head.parse),
    help="The head of an earlier verification, which the chain must still have.",
)
@pass_context
def verify(context: Context, file: Any, keys_file: Path | None, installation: str, noted: Head | None) -> None:
    """Verify FILE, the receipts of one task or one receipt alone. `-` is standard input.

    Each signature, the chain, and its end are verified, and that ledger and tool service agree. With --keys no service
    is asked. Exit code 7: the file was changed, or receipts are missing.
    """
    with extra_packages("`tenure receipts verify`", extra="server"):
        from tenure.client.receipts import read_keys, signature_check
    try:
        keys = read_keys(keys_file.read_text()) if keys_file else context.run(_public_keys)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"--keys: {error}") from error
    try:
        lines = file.read().decode().removesuffix("\n").split("\n")
        verified = verify_receipts(lines, signature_check(keys), noted)
    except (BrokenReceiptsError, UnicodeDecodeError) as error:
        _refuse(f"the receipts are refused: {error}")
    if installation and verified.installation != installation:
        _refuse(f"the receipts are of the installation {verified.installation}, not of {installation}")
    context.say(_as_json(verified), _as_text(verified))


async def _public_keys(client: Client) -> dict[str, bytes]:
    listed = await client.leases.ListSigningKeys(lease_service_pb2.ListSigningKeysRequest())
    return {key.key_id: key.public_key for key in listed.keys}


def _refuse(problem: str) -> NoReturn:
    echo(problem, err=True)
    raise SystemExit(Exit.INVARIANT_VIOLATED)


def _as_json(verified: VerifiedReceipts) -> dict[str, Any]:
    return {
        "installation": verified.installation,
        "tenant": verified.tenant,
        "task_id": verified.task_id,
        "receipts": len(verified.receipts),
        "head": None if verified.head is None else str(verified.head),
        "signed_at": verified.signed_at,
        "open_calls": list(verified.open_calls),
    }


def _as_text(verified: VerifiedReceipts) -> str:
    subject = f"task {verified.task_id} of tenant {verified.tenant}, installation {verified.installation}"
    if verified.head is None:
        number = verified.receipts[0]["tool_service"]["record"]["number"]
        return f"the receipt is genuine: number {number} of {subject}; it shows nothing about other effects"
    text = (
        f"{count_text(len(verified.receipts), 'receipt')} of {subject}: genuine, and complete at {verified.signed_at}"
    )
    doubts = f"; without an outcome then: {', '.join(verified.open_calls)}" if verified.open_calls else ""
    return f"{text}{doubts}; head {verified.head}"
