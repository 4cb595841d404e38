"""The class of an exception of a model call, whichever library raised it. test_agents_outages.py has the libraries."""

from __future__ import annotations

import json
import socket
import urllib.error
from email.message import Message
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelQuotaExceededError, ModelRequestRejectedError

from tenure.control.failures import failure_of, failure_of_call

REQUEST = httpx2.Request("POST", "https://provider.invalid/")


def refusal(kind: Any, status: int, text: str = "no", **body: Any) -> Exception:
    error: Exception = kind(text, response=httpx2.Response(status, request=REQUEST), body=body or None)
    return error


def lasting(error: Exception) -> Exception:
    vars(error)["retryable"] = False
    return error


@pytest.mark.parametrize(
    ("error", "error_class", "status"),
    [
        (refusal(openai.RateLimitError, 429, code="insufficient_quota"), "BILLING", 429),
        (refusal(openai.RateLimitError, 429), "RATE_LIMITED", 429),
        (refusal(anthropic.BadRequestError, 400, "Your credit balance is too low"), "BILLING", 400),
        (ModelHTTPError.for_category(ModelQuotaExceededError, status_code=400, model_name="m"), "BILLING", 400),
        (ModelRequestRejectedError("m", "no"), "INVALID_REQUEST", 0),
        (ModelAPIError("m", "broken"), "CONNECTION", 0),
        (refusal(anthropic.APIStatusError, 200, "Overloaded, within a stream"), "BROKEN_STREAM", 0),
        (openai.APIError("within a stream", REQUEST, body=None), "BROKEN_STREAM", 0),
        (openai.APITimeoutError(request=REQUEST), "SILENT", 0),
        (httpx2.ReadTimeout("slow", request=REQUEST), "SILENT", 0),
        (httpx2.UnsupportedProtocol("no http://", request=REQUEST), "UnsupportedProtocol", 0),
        (json.JSONDecodeError("no", "{", 1), "UNUSABLE_ANSWER", 0),
        (socket.gaierror("no such host"), "CONNECTION", 0),
        (urllib.error.HTTPError("u", 503, "away", Message(), None), "SERVER_ERROR", 503),
        (urllib.error.URLError("refused"), "CONNECTION", 0),
    ],
)
def test_error_of_a_library_has_the_class_of_its_failure(error: Exception, error_class: str, status: int) -> None:
    failed = failure_of_call(error)
    assert (failed.failure.error_class, failed.status_code) == (error_class, status)


def test_message_names_the_first_cause() -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = httpx2.ConnectError("host unreachable")
    assert failure_of_call(error).failure.message == "Connection error.: host unreachable"
    error.__cause__ = error
    assert failure_of_call(error).failure.message == "Connection error."


def test_connection_error_of_a_step_may_be_retried() -> None:
    """Its class stays the name: only a model call's failure says that the provider is away."""
    raised = [httpx2.ConnectError("gone"), lasting(httpx2.ConnectError("gone")), json.JSONDecodeError("no", "{", 1)]
    assert [(failure_of(error).error_class, failure_of(error).retryable) for error in raised] == [
        ("ConnectError", True), ("ConnectError", False), ("JSONDecodeError", False),
    ]  # fmt: skip
