"""web_search against a real endpoint over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from tenure.domain.tools import OutcomeStatus
from tests.support.fix_tools import Grants, StartTools, ToolClient


class _Endpoint(BaseHTTPRequestHandler):
    answer: tuple[int, bytes] = (200, b"{}")
    url = ""
    requests: ClassVar[list[tuple[dict[str, list[str]], dict[str, str]]]]

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        if target.path != urlsplit(self.url).path:
            self.send_error(404)  # of another test, that had this port before
            return
        self.requests.append((parse_qs(target.query), dict(self.headers)))
        status, body = self.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def endpoint() -> Iterator[Any]:
    class Endpoint(_Endpoint):
        requests: ClassVar = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Endpoint.url = f"http://127.0.0.1:{server.server_port}/search/{uuid4().hex}"
    yield Endpoint
    server.shutdown()
    server.server_close()
    thread.join()


async def test_results_are_returned_with_a_recognisable_request(
    tool_service: StartTools, grants: Grants, endpoint: Any
) -> None:
    results = [{"title": f"T{n}", "url": f"https://e/{n}", "snippet": f"S{n}"} for n in range(9)]
    endpoint.answer = (200, json.dumps({"results": results}).encode())
    tools = await tool_service(search_url=endpoint.url)
    owner = grants.claim(epoch=12)
    outcome = await tools.outcome(owner, "1.0", "web_search", query="fencing & tokens", num_results=2)
    assert outcome.content == "1. T0\n   https://e/0\n   S0\n2. T1\n   https://e/1\n   S1"
    ((query, headers),) = endpoint.requests
    assert query == {"q": ["fencing & tokens"], "n": ["2"]}
    assert headers["Idempotency-Key"] == f"{owner.task_id}/1.0"
    assert headers["X-Fencing-Epoch"] == "12"


async def test_no_endpoint_is_an_outcome(tools: ToolClient, tool_service: StartTools, grants: Grants) -> None:
    outcome = await tools.outcome(grants.claim(), "1.0", "web_search", query="x")
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "NOT_CONFIGURED")
    unreachable = await tool_service(search_url="http://127.0.0.1:1/")
    outcome = await unreachable.outcome(grants.claim(), "1.0", "web_search", query="x")
    assert (outcome.status, outcome.detail) == (OutcomeStatus.FAILED, "UNREACHABLE")
