"""Answers for calls of the client, without a gateway."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.client import Client


def answer_calls(monkeypatch: pytest.MonkeyPatch, stub: str, method: str, answer: Any) -> None:
    """Makes every client call `answer` instead of a method: `answer_calls(monkeypatch, "agents", "GetAgent", …)`."""
    connect = Client.connect

    def connected(client: Client) -> Client:
        setattr(getattr(connect(client), stub), method, answer)
        return client

    monkeypatch.setattr(Client, "connect", connected)
