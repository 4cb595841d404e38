"""Hashes by which a call in the ledger is compared with its record at the tools."""

from __future__ import annotations

import hashlib

from tenure.domain.tools import Outcome


def arguments_hash(tool: str, arguments_json: str) -> bytes:
    """Of the tool and the exact bytes of its arguments, as the tool service makes it."""
    named = tool.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return hashlib.sha256(named.encode() + b"\0" + arguments_json.encode()).digest()


def outcome_hash(outcome: Outcome) -> bytes:
    """Of what the model reads of it: its status, detail and content."""
    return hashlib.sha256(f"{outcome.status}\0{outcome.detail}\0{outcome.content}".encode()).digest()
