"""`tenure completion`: prints the script with which a shell completes the commands and options of `tenure`."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from tenure.cli.output import echo

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion script of a shell: bash, zsh or fish.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(command: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes the commands and options of `tenure`.

    \b
    bash   eval "$(tenure completion bash)"     in ~/.bashrc
    zsh    eval "$(tenure completion zsh)"      in ~/.zshrc, after compinit
    fish   tenure completion fish > ~/.config/fish/completions/tenure.fish
    """  # noqa: D301  the \\b must reach click as one character: click then keeps the line breaks
    kind = get_completion_class(shell)
    assert kind is not None, shell
    # The base class fills in the template; that of bash would run bash first, to look at its version.
    echo(ShellComplete.source(kind(command.find_root().command, {}, "tenure", "_TENURE_COMPLETE")))
