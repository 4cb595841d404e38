"""What users type for a submit stays the same: arguments in Python, options of the command, fields over HTTP."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_type_hints

import click

from services.gateway.http.openapi import openapi_document
from services.gateway.http.routes import ROUTES
from tenure import Client, SyncClient
from tenure.cli import schedules
from tenure.cli.group import ANYWHERE
from tenure.cli.submit import submit
from tenure.sdk.submit_options import SubmitOptions
from tests.unit.golden_files import compare_with_golden

BODIES = ("SubmitBody", "ScheduleBody", "ScheduleChangeBody", "ForkBody")


def signature_text(function: Any) -> str:
    """One argument a line, those by keyword sorted."""
    signature = inspect.signature(function, eval_str=True)
    arguments = [argument for name, argument in signature.parameters.items() if name != "self"]
    lines = [str(argument) for argument in arguments if argument.kind is not inspect.Parameter.KEYWORD_ONLY]
    lines += sorted(str(argument) for argument in arguments if argument.kind is inspect.Parameter.KEYWORD_ONLY)
    return "\n".join([*lines, f"-> {inspect.formatannotation(signature.return_annotation)}"])


def typed_text(options: Any) -> str:
    return "\n".join(
        f"{name}: {inspect.formatannotation(kind)}" for name, kind in sorted(get_type_hints(options).items())
    )


def command_text(command: click.Command) -> str:
    """One option a line, with what it takes and its default."""
    lines = []
    for param in (param for param in command.params if param.name not in ANYWHERE):
        assert not isinstance(param, click.Option) or param.help, f"{param.name} has no help"
        is_flag = isinstance(param, click.Option) and param.is_flag
        takes = "" if is_flag else f" {param.metavar or param.make_metavar(click.Context(command))}"
        repeated = ", repeated" if param.multiple else ""
        default = f", default {param.default!r}" if isinstance(param.default, str) and param.default else ""
        lines.append(f"{'/'.join(param.opts)}{takes}{repeated}{', required' if param.required else ''}{default}")
    return "\n".join(sorted(lines))


def fields_text(schema: Any) -> str:
    """One field a line, with its type."""
    types = {name: without_texts(each) for name, each in sorted(schema["properties"].items())}
    return "\n".join(
        f"{name}{', required' if name in schema.get('required', ()) else ''}: {json.dumps(kind, sort_keys=True)}"
        for name, kind in types.items()
    )


def without_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: without_texts(each) for name, each in schema.items() if name != "description"}
    return [without_texts(each) for each in schema] if isinstance(schema, list) else schema


def test_surface_of_a_submit_stays_the_same() -> None:
    schemas = openapi_document(ROUTES)["components"]["schemas"]
    texts = {
        f"{client.__name__}.{name}": signature_text(getattr(client, name))
        for client in (Client, SyncClient)
        for name in ("submit", "submit_function", "register_agent")
    }
    texts["SubmitOptions"] = typed_text(SubmitOptions)
    commands = {"submit": submit, "schedules create": schedules.create, "schedules update": schedules.update}
    texts |= {f"tenure {name}": command_text(command) for name, command in commands.items()}
    texts |= {name: fields_text(schemas[name]) for name in BODIES}
    compare_with_golden("submit_surface.txt", texts)
