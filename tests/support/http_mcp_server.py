"""An MCP server over HTTP whose tool pays, and then answers the call with what its test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OBJECT = {"type": "object"}


@dataclass
class HttpMcpServer:
    """`answer`: the body of the answer to a call, given the call's own id; a text is an event. `paid`: how often it was
    called.
    """

    status: int
    answer: Any
    port: int = 0
    paid: list[str] = field(default_factory=list)

    def reply(self, message: dict[str, Any]) -> tuple[int, Any]:
        own_id, method = message.get("id"), message["method"]
        if own_id is None:
            return 202, None
        if method == "tools/call":
            self.paid.append(message["params"]["_meta"]["tenure/idempotency_key"])
            return self.status, self.answer(own_id)
        if method == "tools/list":
            return 200, {"jsonrpc": "2.0", "id": own_id, "result": {"tools": [{"name": "pay", "inputSchema": OBJECT}]}}
        if method == "initialize":
            facts = {"capabilities": {"tools": {}}, "serverInfo": {"name": "paying", "version": "1"}}
            facts["protocolVersion"] = message["params"]["protocolVersion"]
            return 200, {"jsonrpc": "2.0", "id": own_id, "result": facts}
        return 200, {"jsonrpc": "2.0", "id": own_id, "error": {"code": -32601, "message": "unknown"}}


@contextmanager
def http_mcp_server(status: int, answer: Any) -> Iterator[HttpMcpServer]:
    """Serves at http://127.0.0.1:PORT/ while it is open, with a session."""
    paying = HttpMcpServer(status, answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Logs nothing: no test reads it."""

        def do_GET(self) -> None:
            self._say(405, None)

        def do_DELETE(self) -> None:
            self._say(200, None)

        def do_POST(self) -> None:
            self._say(*paying.reply(json.loads(self.rfile.read(int(self.headers["content-length"])))))

        def _say(self, status: int, body: Any) -> None:
            is_event = isinstance(body, str)
            content = b"" if body is None else (f"data: {body}\n\n" if is_event else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("content-type", "text/event-stream" if is_event else "application/json")
            self.send_header("content-length", str(len(content)))
            self.send_header("mcp-session-id", "1")
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        paying.port = server.server_port
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serving.start()
        try:
            yield paying
        finally:
            server.shutdown()
            serving.join()
