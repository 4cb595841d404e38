"""The programs and the tests of docs/nightly.md and docs/chat_approvals.md, as a reader runs them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from tenure import TaskState
from tenure.testing import Tenure, tool
from tenure.v1 import webhook_service_pb2 as webhooks
from tests.testing.test_docs import functions_in

pytestmark = [pytest.mark.server, pytest.mark.nightly]
DOCS: Final = Path(__file__).parents[2] / "docs"
PATIENCE_SECONDS: Final = 60.0


def blocks(page: str) -> dict[str, str]:
    """The blocks of Python by their mark, which is the name of the file."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return dict(re.findall(r"^```python ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_a_night(tenure: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = blocks("nightly.md")
    (tmp_path / "nightly.py").write_text(code["nightly.py"])
    monkeypatch.chdir(tmp_path)
    for test in functions_in(code["test"]).values():
        test(tenure, tmp_path)


class Chat:
    """A chat that takes messages. `messages`: what arrived."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                chat.messages.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def running_chat() -> Iterator[Chat]:
    chat = Chat()
    serving = threading.Thread(target=chat.server.serve_forever, daemon=True)
    serving.start()
    try:
        yield chat
    finally:
        chat.server.shutdown()
        serving.join()
        chat.server.server_close()


def until(holds: Callable[[], Any]) -> Any:
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while not (value := holds()):
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    return value


@contextmanager
def backend(folder: Path, listening: socket.socket, environment: dict[str, str]) -> Iterator[None]:
    """The program of the page on a socket that listens already: no other process gets its port."""
    descriptor = listening.fileno()
    command = [sys.executable, "-m", "uvicorn", "chat:app", "--fd", str(descriptor), "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment}, pass_fds=[descriptor])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def press(port: int, message: Any, label: str) -> Any:
    """Presses a button, as the chat tells the backend."""
    (button,) = [each for each in message["blocks"][1]["elements"] if each["text"]["text"] == label]
    payload = {"user": {"name": "ada"}, "actions": [{"action_id": button["action_id"], "value": button["value"]}]}
    body = urlencode({"payload": json.dumps(payload)}).encode()
    with urlopen(Request(f"http://127.0.0.1:{port}/chat", data=body)) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("label", ["Approve", pytest.param("Deny", marks=pytest.mark.nightly)])
def test_a_button_in_a_chat_approves(tenure: Tenure, tmp_path: Path, label: str) -> None:
    code = blocks("chat_approvals.md")
    for name in ("shop.py", "chat.py"):
        (tmp_path / name).write_text(code[name])
    with running_chat() as chat, socket.create_server(("127.0.0.1", 0)) as listening:
        approve_in(tenure, tmp_path, chat, listening, label)


def approve_in(tenure: Tenure, tmp_path: Path, chat: Chat, listening: socket.socket, label: str) -> None:
    port = listening.getsockname()[1]
    request = webhooks.CreateWebhookRequest(name="chat", url=f"http://127.0.0.1:{port}/tenure")
    secret = tenure._calls.run(lambda: tenure._gateway.webhooks.CreateWebhook(request)).secret
    with backend(tmp_path, listening, {"WEBHOOK_SECRET": secret, "CHAT_URL": chat.url}):
        tenure.model.script([tool("refund", order="7", cents=500), "Refunded."])
        worker = tenure.worker(program=tmp_path / "shop.py")
        task = tenure.submit("Refund order 7", agent="shop")
        task.wait_until(TaskState.WAITING_USER)
        worker.kill()
        (message,) = until(lambda: list(chat.messages))
        assert "May the agent call refund" in message["text"]
        assert press(port, message, label) == {"text": "Done."}
        assert press(port, message, label) == {"text": "The task no longer waits for this."}
        tenure.worker(program=tmp_path / "shop.py")
        assert task.result().value == "Refunded."
        assert tenure.effects("refund") == (label == "Approve")
