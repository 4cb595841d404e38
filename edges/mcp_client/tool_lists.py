"""Reads lists of tools one by one: a tool that the protocol forbids is left out, with a sentence, and not its list.

The protocol's package refuses the whole page for one bad tool. So these tools are taken out of an answer before the
package reads it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import mcp_types as types
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

MAX_LISTED: Final = 4096
"""How many tools of a list are read. A source may offer 256 of them; to look at millions would block the event loop."""

_METHOD: Final = "tools/list"
_MAX_LEFT_OUT: Final = 256
_LONGEST_NAME: Final = 100
_LONGEST_FAULT: Final = 200


class ListedTools(NamedTuple):
    """The tools of a server's list, and a sentence for each tool of it that cannot be read."""

    tools: list[types.Tool]
    left_out: tuple[str, ...] = ()


class ToolLists:
    """The lists of tools of one session. `left_out`: the sentences about the newest list."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._version = ""
        self._requests: set[str | int] = set()

    def begin(self, version: str) -> None:
        """Begins a list. `version`: of the session's protocol."""
        self._version, self.left_out = version, []

    def note_request(self, message: types.JSONRPCMessage) -> None:
        """Takes a message to the server."""
        if isinstance(message, types.JSONRPCRequest) and message.method == _METHOD:
            self._requests.add(message.id)

    def note_answer(self, message: types.JSONRPCMessage) -> None:
        """Takes a message of the server. Takes the bad tools out of a page."""
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError) or message.id not in self._requests:
            return
        self._requests.discard(message.id)
        if isinstance(message, types.JSONRPCResponse) and isinstance(message.result.get("tools"), list):
            self._keep_good(message.result)

    def _keep_good(self, page: dict[str, Any]) -> None:
        rest = {**page, "tools": []}
        try:
            _validate(rest, self._version)
        except ValidationError:
            return  # the page itself is not one of the protocol
        kept = []
        for tool in page["tools"][:MAX_LISTED]:
            if fault := self._fault(rest, tool):
                self.left_out.append(f"{_name_of(tool)} is left out: {fault}")
            else:
                kept.append(tool)
        del self.left_out[_MAX_LEFT_OUT:]
        page["tools"] = kept

    def _fault(self, rest: dict[str, Any], tool: Any) -> str:
        try:
            _validate({**rest, "tools": [tool]}, self._version)
            parsed = types.Tool.model_validate(tool, by_name=False)
        except ValidationError as error:
            return _sentence(error)
        except (ValueError, RecursionError) as error:  # it nests too deeply, for example
            return f"it cannot be read: {str(error)[:_LONGEST_FAULT]}"
        if self._version in MODERN_PROTOCOL_VERSIONS:
            return find_invalid_x_mcp_header(parsed.input_schema) or ""
        return ""


def _validate(page: dict[str, Any], version: str) -> None:
    validate_server_result(_METHOD, version, page)


def _name_of(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return repr(name[:_LONGEST_NAME]) if isinstance(name, str) else "a tool without a name"


def _sentence(error: ValidationError) -> str:
    """Returns what is wrong with a tool, in place of the package's report, which quotes the whole tool."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # the package adds the types of its own classes to the place
    place = [str(part) for part in first["loc"] if part not in {"tools", 0} and "[" not in str(part)]
    if first["type"] == "missing" and place == ["inputSchema"]:
        return "it has no schema"
    subject, place = ("its schema", place[1:]) if place[:1] == ["inputSchema"] else ("it", place)
    where = ".".join(place)
    if first["type"] == "missing":
        return f"{subject} has no {where}"
    fault = f"{where}: {first['msg']}" if where else first["msg"]
    return f"{subject} is not as the protocol says: {fault[:_LONGEST_FAULT]}"
