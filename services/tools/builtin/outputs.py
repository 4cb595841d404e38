"""The tool record_output, which states a downstream output of the task."""

from __future__ import annotations

import asyncio
from typing import Final

from services.tools.tool import Arguments, CallContext, Tool, ToolAnswer, ToolFailure, define, past_return
from services.tools.workspace.directories import Workspaces, split_path
from services.tools.workspace.reading import digest_of_file
from tenure.domain.outputs import (
    DIGEST_PATTERN,
    KIND_PATTERN,
    MAX_DESCRIPTION_CHARACTERS,
    MAX_OUTPUTS,
    MAX_SIZE_BYTES,
    MAX_URI_BYTES,
    RECORD_OUTPUT,
    URI_PATTERN,
    WORKSPACE_SCHEME,
    FileDigest,
    OutputState,
    TaskOutput,
    problem_of_output,
)
from tenure.domain.tools import EffectClass

_PROPERTIES: Final = {
    "kind": {"type": "string", "pattern": KIND_PATTERN, "description": "what it is, for example report"},
    "path": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_URI_BYTES - len(WORKSPACE_SCHEME),
        "description": f"at most {MAX_URI_BYTES - len(WORKSPACE_SCHEME)} bytes in UTF-8",
    },
    "uri": {
        "type": "string",
        "pattern": URI_PATTERN,
        "maxLength": MAX_URI_BYTES,
        "description": f"at most {MAX_URI_BYTES} bytes in UTF-8",
    },
    "digest": {"type": "string", "pattern": DIGEST_PATTERN, "description": "of a `uri`, if you know it: sha256:<hex>"},
    "size_bytes": {"type": "integer", "minimum": 0, "maximum": MAX_SIZE_BYTES},
    "description": {"type": "string", "maxLength": MAX_DESCRIPTION_CHARACTERS},
}


def output_tools(workspaces: Workspaces) -> list[Tool]:
    """Returns the tool over these workspaces. It changes nothing: the ledger records its outcome as the output."""
    definition = define(
        RECORD_OUTPUT,
        EffectClass.PURE,
        "Record an output of your work for those who use it: a file of the workspace (`path`), or anything else by its "
        f"`uri`. The list of a task's outputs is shown beside its result; at most {MAX_OUTPUTS} calls.",
        _PROPERTIES,
        required=("kind",),
    )

    async def run(context: CallContext, arguments: Arguments) -> ToolAnswer:
        return await past_return(asyncio.to_thread(_record, workspaces, context, arguments))

    return [Tool(definition, run)]


def _record(workspaces: Workspaces, context: CallContext, arguments: Arguments) -> ToolAnswer:
    path, uri = arguments.get("path", ""), arguments.get("uri", "")
    if bool(path) == bool(uri):
        raise ToolFailure("Give either the `path` of a file of the workspace or a `uri`.", "BAD_OUTPUT")
    output = _file_output(workspaces, context, arguments) if path else _stated_output(arguments)
    if problem := problem_of_output(output):
        raise ToolFailure(f"The output cannot be recorded: {problem}.", "BAD_OUTPUT")
    known = f", {output.size_bytes} bytes, {output.digest}" if output.path else ""
    return ToolAnswer(f"Recorded {output.kind} {output.uri}{known}.", output=output)


def _stated_output(arguments: Arguments) -> TaskOutput:
    uri: str = arguments["uri"]
    size_bytes = int(arguments["size_bytes"]) if "size_bytes" in arguments else None  # 1e6 is an integer in JSON Schema
    if uri.lower().startswith(WORKSPACE_SCHEME):
        raise ToolFailure("Name a file of the workspace by its `path`.", "BAD_OUTPUT")
    return TaskOutput(
        arguments["kind"],
        uri,
        OutputState.STATED,
        arguments.get("digest", ""),
        size_bytes,
        arguments.get("description", ""),
    )


def _file_output(workspaces: Workspaces, context: CallContext, arguments: Arguments) -> TaskOutput:
    path: str = arguments["path"]
    if "digest" in arguments or "size_bytes" in arguments:
        raise ToolFailure("`digest` and `size_bytes` are only for a `uri`: a file is read.", "BAD_OUTPUT")
    try:
        with workspaces.opened(context.tenant, context.task_id) as workspace:
            file: FileDigest = digest_of_file(workspace, path)
    except OSError as error:
        raise ToolFailure(f"{path!r}: {error.strerror or error}.", type(error).__name__) from error
    uri, description = f"{WORKSPACE_SCHEME}{'/'.join(split_path(path))}", arguments.get("description", "")
    return TaskOutput(arguments["kind"], uri, OutputState.RECORDED, file.digest, file.size_bytes, description)
