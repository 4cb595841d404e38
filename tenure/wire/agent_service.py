"""Converts agents and their revisions, and computes the digest of a definition."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from google.protobuf import json_format

from tenure.domain.agents import AgentContent, AgentKind, ToolContent
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.codec import writer
from tenure.wire.common import EnumMap

KINDS: Final = EnumMap(AgentKind, dict(pb.AgentKind.items()), "AGENT_KIND", None)

_tool_to_wire = writer(ToolContent, pb.AgentTool, rename={"effect": "effect_class"})


def digest_of(definition: pb.AgentDefinition) -> str:
    """Returns the digest of a definition, the same in each language: SHA-256 of its canonical JSON.

    The JSON has the names of the contract, sorted keys, no spaces, and no field that is not set.
    """
    content = json_format.MessageToDict(definition, preserving_proto_field_name=True)
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def definition_to_wire(content: AgentContent, build: str) -> pb.AgentDefinition:
    """Returns the definition of an agent or a function in Python, for a worker of this build ("": none)."""
    agent = task_pb2.AgentSpec(model=content.model, system=content.system, max_output_tokens=content.max_output_tokens)
    return pb.AgentDefinition(
        kind=KINDS.to_wire(content.kind),
        agent=agent if agent.ByteSize() else None,
        tools=[_tool_to_wire(tool) for tool in sorted(content.tools, key=lambda tool: tool.name)],
        input_schema_json=content.input_schema_json,
        output_schema_json=content.output_schema_json,
        code_version=content.code_version(build),
    )
