"""The gateway with its edges: the program of `tenure serve gateway`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.gateway import main as gateway

if TYPE_CHECKING:
    from services.gateway.http.edge import HttpEdge


def http_edges() -> tuple[HttpEdge, ...]:
    """Returns the edges of the HTTP server. Only a gateway with a door imports their libraries."""
    from edges.a2a.door import A2A
    from edges.answer_links.door import ANSWER_LINKS
    from edges.chats.routes import CHATS
    from edges.console.door import CONSOLE
    from edges.mcp_server.door import MCP_SERVER

    return A2A, CHATS, MCP_SERVER, ANSWER_LINKS, CONSOLE


def main() -> int:
    """Runs the gateway and returns its exit code."""
    return gateway.main(http_edges)
