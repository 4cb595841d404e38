"""What every command needs: where the gateway is, whose tasks, and how to speak."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from google.protobuf.message import Message
from rich.console import Console

from devstack.data_dir import read_addresses
from tenure.cli.output import echo, json_line
from tenure.client import Client
from tenure.wire.common import to_dict

T = TypeVar("T")

DEFAULT_ADDRESS: Final = "127.0.0.1:8470"
DEFAULT_DATA_DIR: Final = Path(".tenure")


@dataclass(frozen=True, slots=True)
class Context:
    """`console` is for people, `emit` is for machines. `environment` is the process's, read in main.py."""

    address: str
    tenant: str
    as_json: bool
    data_dir: Path
    console: Console
    environment: Mapping[str, str]
    is_verbose: bool = False

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Runs `work` with a connected client."""

        async def connected() -> T:
            async with Client(self.address, tenant=self.tenant) as client:
                return await work(client)

        return asyncio.run(connected())

    def path_of(self, path: Path) -> Path:
        """As short as it can be said from here."""
        here = Path.cwd()
        return path.relative_to(here) if path.is_relative_to(here) else path

    def emit(self, message: Message | Mapping[str, Any]) -> None:
        """One line of JSON, in the contract's own names."""
        value = to_dict(message) if isinstance(message, Message) else message
        echo(json_line(value))


def find_gateway(address: str | None, data_dir: Path) -> str:
    """The address given, else that of the stack running on this folder, else the usual one."""
    if address:
        return address
    running = read_addresses(data_dir)
    return running["gateway"] if running and "gateway" in running else DEFAULT_ADDRESS


pass_context = click.make_pass_decorator(Context)
