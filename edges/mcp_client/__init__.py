"""MCP servers as sources of tools: sessions with the servers, and the calls of their tools.

The files, in the order in which data flows:

settings.py            the section `mcp_servers` of the config file
sources.py             the entry point: opens the servers and registers their tools
servers.py             the sessions of one server: shared by all tasks, or one process per task
connection.py          opens and holds one session with a program, a sandboxed program or a URL

confined.py            the command of a confined program: what it sees, its environment, its limits
program.py             runs an unconfined server program
subprocess_reaper.py   the parent process of such a program: ends it with all its descendants
stderr_log.py          logs a bounded part of a program's stderr
stdio_framing.py       one JSON object per line over pipes; size and rate limits; the headers of calls
tool_lists.py          leaves the bad tools out of a server's list
http_transport.py      turns a failed HTTP request into the error answer to its one message

calling.py             a tool call: send, send again, keep the answer's parts; tool definitions
delivery_errors.py     whether a call without an answer was sent

Only edges/tools.py may import this package, apart from settings.py, and only where a server is configured: the
protocol's package is large.
"""
