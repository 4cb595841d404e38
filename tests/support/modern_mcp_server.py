"""An MCP server made with the protocol's own package, of its newest revision, over streamable HTTP.

modern_mcp_server.py PORT
"""

from __future__ import annotations

import json
import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("modern")


@server.tool()
def seen(ctx: Context) -> str:
    """What came along with the call."""
    return json.dumps({"headers": dict(ctx.headers or {}), "meta": dict(ctx.request_context.meta or {})}, default=str)


@server.tool()
async def grow(ctx: Context) -> str:
    """From now on there is one more."""
    server.add_tool(lambda: "new", name="grown", description="A new one.")
    await ctx.notify_tools_changed()
    return "grown"


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
