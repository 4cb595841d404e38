"""What is known of an endpoint: limits that its refusals state, and how long it may be silent."""

from __future__ import annotations

import pytest

from tenure.domain.compaction import Window
from tenure.model_providers.client import ModelRequest, refused
from tenure.model_providers.endpoint import (
    PINGED_SILENCE_SECONDS,
    SILENCE_SECONDS,
    KnownEndpoint,
    ModelLimits,
    ModelOptions,
    is_local_host,
    stated_limits,
)

VLLM = (
    "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 4096 tokens "
    "and your request has 232 input tokens (8192 > 4096 - 232)."
)
OLD_VLLM = (
    "This model's maximum context length is 4096 tokens. However, you requested 8424 tokens (232 in the messages, 8192 "
    "in the completion). Please reduce the length of the messages or completion."
)
OPENROUTER = (
    "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (31808 of text "
    "input, 8192 in the output)."
)
SGLANG = (
    "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 8424 "
    "tokens: 232 tokens from the input messages and 8192 tokens for the completion."
)
CLAUDE = "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length"
OPENAI = "max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided 8192."
HAIKU = "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-haiku-20240307"


def request(output: int = 8192, input_tokens: int = 0) -> ModelRequest:
    return ModelRequest("m", (), output, input_tokens=input_tokens)


@pytest.mark.parametrize(
    ("message", "limits"),
    [
        (VLLM, ModelLimits(4096, 0, 232)),
        (OLD_VLLM, ModelLimits(4096, 0, 232)),
        (OPENROUTER, ModelLimits(32768, 0, 31808)),
        (SGLANG, ModelLimits(4096, 0, 232)),
        (CLAUDE, ModelLimits(200_000, 0, 190_000)),
        ("the request exceeds the available context size (4096 tokens), try increasing it", ModelLimits(4096)),
        ("`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 12 `inputs` tokens", ModelLimits(4097, 0, 12)),
        (OPENAI, ModelLimits(0, 4096)),
        (HAIKU, ModelLimits(0, 4096)),
        ("`max_completion_tokens` must be less than or equal to `4096`, the maximum value for", ModelLimits(0, 4096)),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 4096]", ModelLimits(0, 4096)),
        ("The maximum tokens you requested exceeds the model limit of 4096. Try again", ModelLimits(0, 4096)),
        ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", ModelLimits()),
        ("maximum context length is 99999999999 tokens", ModelLimits()),
        ("", ModelLimits()),
    ],
)
def test_limits_that_servers_state(message: str, limits: ModelLimits) -> None:
    assert stated_limits(message) == limits


def test_request_is_repeated_within_the_stated_window() -> None:
    endpoint = KnownEndpoint()
    again = endpoint.learn(request(), 400, VLLM)
    assert again is not None
    assert again.max_output_tokens == 4096 - 232
    assert endpoint.limits("m").window_tokens == 4096
    assert endpoint.fitted(request(input_tokens=1000)).max_output_tokens == 3096
    assert endpoint.fitted(request()).max_output_tokens == 2048  # nothing is known of the input
    assert endpoint.fitted(request(100, 1000)).max_output_tokens == 100
    assert endpoint.limits("another") == ModelLimits()


def test_smallest_output_is_asked_for_in_a_full_window() -> None:
    endpoint = KnownEndpoint(lambda _: ModelOptions(context_window_tokens=4096))
    assert endpoint.fitted(request(input_tokens=4090)).max_output_tokens == 256


def test_input_that_fills_the_window_is_not_sent_again() -> None:
    assert KnownEndpoint().learn(request(), 400, VLLM.replace("232", "5000")) is None


@pytest.mark.parametrize(("status", "message"), [(500, VLLM), (400, "Unknown model"), (429, VLLM)])
def test_other_refusals_teach_nothing(status: int, message: str) -> None:
    endpoint = KnownEndpoint()
    assert endpoint.learn(request(), status, message) is None
    assert endpoint.limits("m") == ModelLimits()


def test_settings_and_refusals_both_hold() -> None:
    endpoint = KnownEndpoint(lambda _: ModelOptions(context_window_tokens=8192, max_output_tokens=1000))
    assert endpoint.fitted(request(input_tokens=100)).max_output_tokens == 1000
    endpoint.learn(request(1000), 400, VLLM)
    assert endpoint.limits("m") == ModelLimits(4096, 1000)


def test_refusal_of_a_limit_names_the_settings() -> None:
    failure = refused(400, HAIKU, None)
    assert "set context_window_tokens and max_output_tokens of its endpoint" in failure.message
    assert "max_output_tokens" not in refused(400, "no such model", None).message


@pytest.mark.parametrize(
    ("endpoint", "seconds"),
    [
        (KnownEndpoint(host="api.openai.com"), SILENCE_SECONDS),
        (KnownEndpoint(host="api.anthropic.com", is_pinged=True), PINGED_SILENCE_SECONDS),
        (KnownEndpoint(host="", is_pinged=True), PINGED_SILENCE_SECONDS),
        (KnownEndpoint(host="localhost"), None),
        (KnownEndpoint(host="gpu7"), None),
        (KnownEndpoint(host="api.openai.com", silence_seconds=5.0), 5.0),
        (KnownEndpoint(host="localhost", silence_seconds=5.0), 5.0),
        (KnownEndpoint(lambda _: ModelOptions(silence_seconds=7.0), host="localhost", silence_seconds=5.0), 7.0),
        (KnownEndpoint(host="api.openai.com", silence_seconds=700.0), None),  # the call ends before
    ],
)
def test_silence_that_an_answer_may_have(endpoint: KnownEndpoint, seconds: float | None) -> None:
    assert endpoint.silence_seconds("m", 600.0) == seconds


def test_silence_is_not_paid_twice() -> None:
    endpoint = KnownEndpoint(host="api.openai.com", silence_seconds=100.0)
    waits = []
    while (seconds := endpoint.silence_seconds("m", 600.0)) is not None:
        waits.append(seconds)
        endpoint.met_silence("m", seconds)
    assert waits == [100.0, 200.0, 400.0]
    assert endpoint.silence_seconds("another", 600.0) == 100.0


def test_silence_of_a_pinging_server_is_not_waited_longer() -> None:
    endpoint = KnownEndpoint(host="api.anthropic.com", is_pinged=True)
    assert "not even a ping" in endpoint.met_silence("m", PINGED_SILENCE_SECONDS)
    assert endpoint.silence_seconds("m", 600.0) == PINGED_SILENCE_SECONDS


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("10.0.0.7", True),
        ("192.168.1.2", True),
        ("ollama", True),
        ("mac.local", True),
        ("gpu.corp.internal", True),
        ("api.openai.com", False),
        ("8.8.8.8", False),
        ("", False),
    ],
)
def test_local_hosts(host: str, *, is_local: bool) -> None:
    assert is_local_host(host) is is_local


def test_window_of_an_endpoint_narrows_the_models() -> None:
    window = Window(128_000, 8192)
    assert window.within(0) is window
    assert window.within(200_000) is window
    assert window.within(4096) == Window(4096, 2048)
