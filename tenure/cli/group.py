"""The click group of `tenure`: commands that are imported at their use, help in sections, and errors as messages.

An import of all commands takes half a second. So this module imports neither gRPC nor the messages of the API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from tenure.cli.exit_codes import Exit
from tenure.runtime.fast_start import imports_kept

SERVE: Final = "serve"
ANYWHERE: Final = ("address", "tenant", "as_json", "is_verbose")
"""The parameters of `tenure` whose options may also stand after the name of a command."""


class Commands(MutableMapping[str, click.Command]):
    """The commands of a group by name, each imported at its first use: from `tenure.cli.submit:submit`, for example."""

    def __init__(self, places: Mapping[str, str] | None = None) -> None:
        self._commands: dict[str, click.Command | str] = dict(places or {})

    def __getitem__(self, name: str) -> click.Command:
        command = self._commands[name]
        if isinstance(command, str):
            module, attribute = command.split(":")
            with imports_kept():
                self._commands[name] = command = getattr(import_module(module), attribute)
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)

    def add(self, places: Mapping[str, str]) -> None:
        """Adds commands that are imported later, by name."""
        self._commands.update(places)


class SectionOption(click.Option):
    """An option that the help of a `SectionedCommand` lists below the title `section`."""

    def __init__(self, names: list[str], *, section: str = "", **settings: Any) -> None:
        super().__init__(names, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command with many options: its help lists them in sections, and those without one at the end."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the sections, in the order of their first options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
                sections.setdefault(getattr(parameter, "section", ""), []).append(record)
        others = sections.pop("", [])
        for title, records in (*sections.items(), ("Options", others)):
            with formatter.section(title):
                formatter.write_dl(records)


class Group(click.Group):
    """A group whose commands stand in sections, in the order in which a user needs them.

    Prints an error of the API on standard error and exits with its exit code.
    """

    def __init__(self, name: str | None = None, *, places: Mapping[str, str] | None = None, **options: Any) -> None:
        """`places`: where the group's commands are, by name."""
        super().__init__(name, commands=Commands(places), **options)
        self._sections: dict[str, list[str]] = {}

    def add_section(self, title: str, places: Mapping[str, str]) -> None:
        """Adds commands, by name, that `--help` lists below `title`."""
        assert isinstance(self.commands, Commands)
        self.commands.add(places)
        self._sections[title] = list(places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command, which accepts the options of `ANYWHERE`, too."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            accept_anywhere(command, ctx.find_root().command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            if ctx.parent is None:
                error.message = _one_message(error.message)  # type: ignore[misc]  # click declares it final
            raise
        except (click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)
        except ValueError as error:
            if message := _refused_by_the_encoding(error):
                raise click.UsageError(message, ctx) from error
            raise
        except Exception as error:
            from tenure.cli.error_texts import exit_of_error, explain
            from tenure.cli.output import echo

            code = exit_of_error(error)
            if code is None:
                raise
            message = explain(error, getattr(ctx.obj, "address", ""))
            echo("tenure: " + _one_message(message), err=True)
            ctx.exit(code)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            if nearest := get_close_matches(args[0], self.commands, 3):
                raise click.UsageError(f"{error.message} The nearest: {', '.join(nearest)}.", ctx) from None
            raise

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the names of commands without their help, which would import them all, and the options."""
        names = [CompletionItem(name) for name in self.commands if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

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


class AnywhereOption(click.Option):
    """An option of `tenure` that stands after the name of a command. Only the help of `tenure` lists it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Returns nothing: shells complete the option, but no page of help repeats it."""


def accept_anywhere(command: click.Command, root: click.Command) -> None:
    """Lets the options of `ANYWHERE` of the root command stand after the name of this command, too.

    Not an option whose name the command has for something else.
    """
    if command.context_settings.get("ignore_unknown_options"):  # a service reads its arguments itself
        return
    if any(isinstance(option, AnywhereOption) for option in command.params):
        return
    if isinstance(command, click.Group) and not isinstance(command, Group):
        for subcommand in command.commands.values():
            accept_anywhere(subcommand, root)
    command.epilog = command.epilog or "`tenure --help` lists --json, -v, --tenant and --address."
    own = {name for option in command.params for name in option.opts}
    for option in root.params:
        if option.name in ANYWHERE and isinstance(option, click.Option) and own.isdisjoint(option.opts):
            names = [option.name, *option.opts]
            command.params.append(
                AnywhereOption(names, is_flag=option.is_flag, expose_value=False, callback=_set, help=option.help)
            )


def _set(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """Sets the option as if it stood before the command's name."""
    from tenure.cli.context import context_of

    root = ctx.find_root()
    if value and option.name and not ctx.resilient_parsing:
        root.params[option.name] = value
        root.obj = ctx.obj = context_of(root.obj.environment, **root.params)


def _one_message(text: str) -> str:
    """Returns the text of an error for the terminal: it may be a stranger's. No further line looks like one of ours."""
    from tenure.cli.formatting import harmless

    return harmless(text).replace("\n", "\n  ")


def _refused_by_the_encoding(error: ValueError) -> str:
    """Returns what is wrong with a typed value that no request can have; "" for another error, which is a bug.

    The options do not know the ranges of the contract's fields, and bytes that are not UTF-8 come from anywhere: an
    argument, a file, standard input.
    """
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError) and error.encoding.lower() in {"utf-8", "utf8"}:
        return f"an argument, a file or standard input is not text in UTF-8: {error.reason}"
    _, is_range, number = str(error).partition("Value out of range: ")  # as protobuf writes it
    return f"{number} is out of the range of its field" if is_range else ""
