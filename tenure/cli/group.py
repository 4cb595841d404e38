"""The click group of `tenure`: help in sections, and errors as messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import click

from tenure.cli.context import Context
from tenure.cli.exit_codes import Exit, exit_of_error, explain
from tenure.cli.output import echo
from tenure.domain.errors import TenureError
from tenure.runtime.rpc.status import PeerFailed
from tenure.server_packages import MissingExtra

_STARTS_SERVICE: Final = "tenure.cli.starts_service"
SERVE: Final = "serve"


class ClientOption(click.Option):
    """An option for commands that ask a gateway. `tenure serve` does not read its variable: it is the service's own."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Returns the value of the variable, or None."""
        return None if ctx.meta.get(_STARTS_SERVICE) else super().resolve_envvar_value(ctx)


class Group(click.Group):
    """A group whose commands stand in sections, in the order in which a user needs them.

    Prints an error of the API on standard error and exits with its exit code.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sections: dict[str, list[str]] = {}

    def add_section(self, title: str, commands: Iterable[click.Command]) -> None:
        """Adds commands that `--help` lists below `title`."""
        for command in commands:
            self.add_command(command)
            self._sections.setdefault(title, []).append(command.name or "")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == [SERVE]:
            ctx.meta[_STARTS_SERVICE] = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (TenureError, PeerFailed, TimeoutError, MissingExtra) as error:
            address = ctx.obj.address if isinstance(ctx.obj, Context) else ""
            message = explain(error, address).replace("\n", "\n  ")  # a further line must not look like one of ours
            echo(f"tenure: {message}", err=True)
            ctx.exit(exit_of_error(error))
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)
        except ValueError as error:
            if message := _refused_by_the_encoding(error):
                raise click.UsageError(message, ctx) from error
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if nearest := get_close_matches(args[0], self.commands, 3):
                raise click.UsageError(f"{error.message} The nearest: {', '.join(nearest)}.", ctx) from None
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Returns the commands in the order in which a new user needs them, not sorted by name."""
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the commands before the options: a new user needs them first."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes each section with its commands, one line for each."""
        if not self._sections:
            super().format_commands(ctx, formatter)
            return
        name_width = max(map(len, self.commands))
        limit = formatter.width - 6 - name_width
        for title, names in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{n:<{name_width}}", self.commands[n].get_short_help_str(limit)) for n in names])


def _refused_by_the_encoding(error: ValueError) -> str:
    """Returns what is wrong with a typed value that no request can have; "" for another error, which is a bug.

    The options do not know the ranges of the contract's fields, and bytes that are not UTF-8 come from anywhere: an
    argument, a file, standard input.
    """
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) and error.encoding.lower() in {"utf-8", "utf8"}:
        return f"an argument, a file or standard input is not text in UTF-8: {error.reason}"
    _, is_range, number = str(error).partition("Value out of range: ")  # as protobuf writes it
    return f"{number} is out of the range of its field" if is_range else ""
