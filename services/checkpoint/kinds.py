"""Kinds of entries: the field numbers of EntryBody's oneof, in the database too."""

from __future__ import annotations

from typing import Final

from tenure.v1 import ledger_pb2

KINDS: Final[dict[str, int]] = {field.name: field.number for field in ledger_pb2.EntryBody.DESCRIPTOR.fields}

WRITTEN_BY_OWNERS: Final = frozenset(
    {
        "tools_defined",
        "model_failure",
        "assistant_message",
        "tool_intent",
        "tool_outcome",
        "user_message",
        "control_step",
        "control_failure",
        "result_rejected",
        "compaction",
    }
)
"""What a Commit may hold. All other kinds are the ledger's own: it writes them when it does what they say."""
