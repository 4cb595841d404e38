"""The context of one invocation: the gateway's address, the tenant and the output mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from google.protobuf.message import Message
from rich.console import Console

from tenure.cli.exit_codes import Exit
from tenure.cli.output import echo, json_line, make_console
from tenure.client import Client
from tenure.client.client import check_stays_here
from tenure.runtime.rpc.client import gateway_addresses
from tenure.runtime.running_stack import DEFAULT_ADDRESS, FoundGateway, find_gateway
from tenure.runtime.security.tls import ClientTls, client_tls_of
from tenure.sdk.json_shape import PublicValue
from tenure.wire.common import to_dict

P = ParamSpec("P")
Shown = TypeVar("Shown", bound=Message | PublicValue)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Context:
    """The context that main.py passes to every command. `console` prints for people, `emit` prints JSON.

    `environment` is the environment of the process; only main.py reads it. `is_guessed`: the gateway is the one at the
    usual port, because no option names one and no stack runs here. `problem`: what is wrong with the options and the
    variables that name it; a command that asks no gateway ignores it.
    """

    address: str
    tenant: str | None
    as_json: bool
    data_dir: Path
    console: Console
    environment: Mapping[str, str]
    is_verbose: bool = False
    tls: ClientTls | None = None
    api_key: Callable[[], str] | str = ""
    is_guessed: bool = False
    problem: str = ""

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Runs `work` with a connected client. Raises UsageError if the gateway is not named as it must be."""
        self.check_options()

        async def connected() -> T:
            async with Client(self.address, tenant=self.tenant, tls=self.tls, api_key=self.api_key) as client:
                await self.check(client)
                return await work(client)

        return asyncio.run(connected())

    def check_options(self) -> None:
        """Raises UsageError for options and variables that name no gateway."""
        if self.problem:
            raise click.UsageError(self.problem)

    async def check(self, client: Client) -> None:
        """Raises StackOfAnotherFolder for the stack of another folder, unless a person wants it."""
        if self.is_guessed:
            from tenure.cli.found_gateway import check_found

            await check_found(self, client)

    def path_of(self, path: Path) -> Path:
        """Returns the path relative to the working directory if it is below it, else as it is."""
        working_directory = Path.cwd()
        return path.relative_to(working_directory) if path.is_relative_to(working_directory) else path

    def emit(self, value: Message | PublicValue | Mapping[str, Any]) -> None:
        """Prints one line of JSON: the public JSON (docs/json.md), or with -v the message with the contract's names."""
        if isinstance(value, Message) and not self.is_verbose:
            from tenure.sdk.public_value import public_value

            value = public_value(value)
        if isinstance(value, PublicValue):
            value = value.to_json()
        echo(json_line(to_dict(value) if isinstance(value, Message) else value))

    def say(self, value: Message | PublicValue | Mapping[str, Any], text: str, *, note: str = "") -> None:
        """Prints a value as JSON, or the text for people, and to standard error a note for them."""
        if self.as_json:
            self.emit(value)
            return
        echo(text)
        if note:
            echo(note, err=True)

    def show(self, value: Shown, show: Callable[[Context, Shown], None]) -> None:
        """Prints a value as JSON, or for people with `show`."""
        if self.as_json:
            self.emit(value)
        else:
            show(self, value)

    def show_all(
        self, values: Sequence[Shown], show: Callable[[Context, Sequence[Shown]], None], *, none: str = ""
    ) -> None:
        """Prints values as lines of JSON, or for people with `show`; `none`: what people read when there are none."""
        if self.as_json:
            for value in values:
                self.emit(value)
        elif none and not values:
            echo(none, err=True)
        else:
            show(self, values)

    async def show_each(
        self, values: AsyncIterable[Shown], show: Callable[[Context, Sequence[Shown]], None], *, none: str = ""
    ) -> None:
        """Prints all values of a list, as `show_all` does."""
        self.show_all([value async for value in values], show, none=none)


def context_of(
    environment: Mapping[str, str],
    *,
    address: str | None,
    tenant: str | None,
    as_json: bool,
    is_verbose: bool,
    data: Path,
    api_key_file: Path | None,
    tls_ca_file: Path | None,
    tls_certificate_file: Path | None,
    tls_key_file: Path | None,
) -> Context:
    """Returns the context that the options describe, or else the variables."""
    gateway, problem = _gateway_of(address, data)
    given, own = ClientTls(tls_ca_file, tls_certificate_file, tls_key_file), client_tls_of(environment)
    tls: ClientTls | None = ClientTls(
        given.ca_file or own.ca_file, given.certificate_file or own.certificate_file, given.key_file or own.key_file
    )
    if given == ClientTls():
        tls = gateway.tls or (None if own == given else own)
    api_key = _key_of(environment, api_key_file)
    problem = problem or _problem_of(tls)
    if api_key and tls is None and not problem:
        try:
            check_stays_here(gateway.address)
        except ValueError as error:
            problem = f"{error} with --tls-ca-file"
    return Context(
        gateway.address,
        tenant,
        as_json,
        data,
        make_console(),
        environment,
        is_verbose,
        tls,
        api_key,
        is_guessed=gateway.is_guessed,
        problem=problem,
    )


def _gateway_of(address: str | None, data: Path) -> tuple[FoundGateway, str]:
    """Returns the gateway, and what is wrong with the address."""
    if not address:
        return find_gateway(data), ""
    try:
        return FoundGateway(gateway_addresses(address)), ""
    except ValueError as error:
        return FoundGateway(address), f"--address, or TENURE_ADDRESS: {error}; write for example {DEFAULT_ADDRESS}"


def _problem_of(tls: ClientTls | None) -> str:
    if tls is None:
        return ""
    if (tls.certificate_file is None) != (tls.key_file is None):
        return "--tls-certificate-file and --tls-key-file belong together: give both, or none"
    files = (tls.ca_file, tls.certificate_file, tls.key_file)
    missing = next((path for path in files if path and not path.is_file()), None)
    return f"{missing} does not exist: --tls-ca-file, or TENURE_TLS_CA_FILE, and the others name it" if missing else ""


def _key_of(environment: Mapping[str, str], file: Path | None) -> Callable[[], str] | str:
    """Returns the API key: as for the Python client, the key in the environment goes before the file there."""
    key, named = environment.get("TENURE_API_KEY", ""), environment.get("TENURE_API_KEY_FILE", "")
    if file is None and (key or not named):
        return key
    return partial(read_key, file or Path(named))


def read_key(path: Path) -> str:
    """Returns the API key in the file. Raises ClickException."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise click.ClickException(f"{path} is not a file with an API key: {error}") from None


pass_context = click.make_pass_decorator(Context)


def with_client(work: Callable[Concatenate[Context, Client, P], Awaitable[Exit | None]]) -> Callable[P, None]:
    """Makes the function of a command from a coroutine, which gets the context and a connected client.

    The command ends with the exit code that the coroutine returns.
    """

    @pass_context
    @wraps(work)
    def command(context: Context, /, *args: P.args, **kwargs: P.kwargs) -> None:
        code = context.run(lambda client: work(context, client, *args, **kwargs))
        if code is not None:
            raise SystemExit(code)

    return command
