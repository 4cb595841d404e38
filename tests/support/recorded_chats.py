"""Plays recorded conversations of model providers: files with the requests that a provider expects, and its answers.

The answers are in the form of the provider's public documentation, which each file names. A request that differs from
the recorded one is refused with the difference, as a strict provider does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from devstack.simulator.http_server import HttpRequest, HttpServer, Reply, plain_refusal
from tenure.domain.model_parameters import Effort, ModelParameters
from tenure.domain.models import ANTHROPIC
from tenure.model_providers.anthropic_models import AnthropicProvider
from tenure.model_providers.client import ModelProvider
from tenure.model_providers.endpoint import ModelOptions
from tenure.model_providers.openai_models import OpenAIProvider

FOLDER: Final = Path(__file__).resolve().parents[1] / "conformance" / "dialects"
FILES: Final = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


class RecordedChat:
    """One file. `dialect`: the row that its host and model choose."""

    def __init__(self, name: str) -> None:
        self.data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        self.vendor, self.host = str(self.data["vendor"]), str(self.data["host"])
        self.model, self.dialect = str(self.data["model"]), str(self.data["dialect"])
        self.exchanges: list[dict[str, Any]] = self.data["exchanges"]
        self.answers = [one for one in self.exchanges if one.get("status", 200) == 200]
        given = dict(self.data.get("parameters", {}))
        if "effort" in given:
            given["effort"] = Effort(given["effort"])
        self.parameters = ModelParameters(**given)

    def provider(self, url: str) -> ModelProvider:
        """Returns the provider at the URL, as an operator sets up the server of the recording."""
        if self.vendor == ANTHROPIC:
            return AnthropicProvider(api_key="sk-test", base_url=url, prompt_caching=False)
        streams = self.data.get("streams", True)
        options = ModelOptions(dialect=self.dialect)
        return OpenAIProvider(
            api_key="sk-test", base_url=f"{url}/v1", streams=streams, options_of=lambda _model: options
        )


class RecordedServer:
    """Answers the requests of a recorded conversation, one after the other."""

    def __init__(self, chat: RecordedChat) -> None:
        self._all = list(chat.exchanges)
        self._exchanges = list(self._all)
        self._server = HttpServer(self._answer, max_body_bytes=2**20, refusal=plain_refusal)

    async def __aenter__(self) -> Self:
        await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def rewind(self, number: int) -> None:
        """Goes back to the exchange after this number of exchanges."""
        self._exchanges = self._all[number:]

    @property
    def is_over(self) -> bool:
        return not self._exchanges

    async def _answer(self, request: HttpRequest, reply: Reply) -> None:
        if not self._exchanges:
            reply.send(500, b'{"error": {"message": "the recorded conversation is over"}}')
            return
        exchange, text = self._exchanges[0], request.body.decode()
        body = json.loads(text)
        problems = difference(exchange["expect"], body) + [name for name in exchange["absent"] if name in body]
        problems += [kept for kept in exchange.get("verbatim", ()) if kept not in text]
        if problems:
            refusal = {"error": {"message": f"not as recorded: {problems}", "type": "invalid_request_error"}}
            reply.send(400, json.dumps(refusal).encode())
            return
        self._exchanges.pop(0)
        if "body" in exchange:
            reply.send(exchange.get("status", 200), json.dumps(exchange["body"]).encode())
            return
        reply.begin(200, {"content-type": "text/event-stream"})
        reply.write(_stream(exchange).encode())
        reply.end()


def _stream(exchange: Mapping[str, Any]) -> str:
    if "events" in exchange:
        return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in exchange["events"])
    comments = [f"{comment}\n\n" for comment in exchange.get("comments", ())]
    return "".join([*comments, *(f"data: {json.dumps(chunk)}\n\n" for chunk in exchange["chunks"]), "data: [DONE]\n\n"])


def difference(expected: Any, received: Any, place: str = "") -> list[str]:
    """Returns where a request lacks what is expected. An object may have more members, a list no more items."""
    if isinstance(expected, dict) and isinstance(received, dict):
        return [
            problem
            for name, value in expected.items()
            for problem in difference(value, received.get(name), f"{place}.{name}")
        ]
    if isinstance(expected, list) and isinstance(received, list) and len(expected) == len(received):
        pairs = enumerate(zip(expected, received, strict=True))
        return [problem for n, (one, other) in pairs for problem in difference(one, other, f"{place}[{n}]")]
    return [] if expected == received else [f"{place}: {received!r} instead of {expected!r}"]
