"""Every verb of `tenure` is on the page of commands, and none that does not exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from tenure.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs(command, (*path, name))
        else:
            yield (*path, name)


def documented() -> Iterator[tuple[str, ...]]:
    for line in re.findall(r"^\$ (?:[A-Z]+=\$\()?(tenure .*?)\)?$", PAGE.read_text(), re.MULTILINE):
        command: click.Command = cli
        path = []
        for word in shlex.split(line)[1:]:
            if not isinstance(command, click.Group):
                break
            if not word.startswith("-"):
                assert word in command.commands, f"{line}: there is no such command"
                path.append(word)
                command = command.commands[word]
        yield tuple(path)


def test_every_verb_is_documented_and_exists() -> None:
    assert set(documented()) == set(verbs(cli))


def test_no_page_names_a_verb_that_does_not_exist() -> None:
    root = PAGE.parents[1]
    pages = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("examples/**/*.md"), *root.glob("deploy/**/*.md")]
    named = {
        (page.name, *words)
        for page in pages
        for words in re.findall(r"`tenure ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", page.read_text())
    }
    assert len(named) > 20
    unknown = [(page, verb) for page, verb, _ in named if verb not in cli.commands]
    unknown += [
        (page, f"{verb} {second}")
        for page, verb, second in named
        if second and isinstance(group := cli.commands.get(verb), click.Group) and second not in group.commands
    ]
    assert not unknown
