"""Results on the screen and on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from tenure.cli.words import harmless
from tenure.v1 import task_pb2

F = TypeVar("F", bound=Callable[..., Any])


def result_schema_option(words: str) -> Callable[[F], F]:
    """`--result-schema FILE`: the parameter is what the file says, None when it is not given."""
    return click.option(
        "--result-schema",
        type=click.File(encoding="utf-8"),
        default=None,
        callback=lambda _context, _option, file: None if file is None else file.read(),
        help=words,
    )


def result_of(task: task_pb2.Task) -> str:
    """The result for whoever reads it by program: the JSON alone when the task has a schema, else the words."""
    return task.result_json or task.result


def result_shown(task: task_pb2.Task, *, is_plain: bool) -> RenderableType:
    """The same for people; `is_plain`: not on a terminal."""
    if task.result_json:
        pretty = json.dumps(json.loads(task.result_json), indent=2, ensure_ascii=False)
        return Text(pretty) if is_plain else Padding(Text(harmless(pretty)), (0, 2))
    return Text(task.result) if is_plain else Padding(Markdown(harmless(task.result)), (0, 2))
