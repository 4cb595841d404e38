"""The limiter and the endpoints of the model runner, with the real clients and simulators that limit them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from devstack.simulator.rate_limits import RateLimits
from devstack.simulator.scenario import fault_from
from devstack.simulator.simulator import ModelSimulator
from services.models.admission import LimitedCall
from services.models.endpoints.opening import open_endpoints
from services.models.endpoints.routing import EndpointPermit, ModelEndpoints
from services.models.endpoints.settings import EndpointSettings, read_endpoints
from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import text_block
from tenure.domain.retry import FailureClass
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelAnswer, ModelCall, ModelCallFailed, ModelRequest
from tenure.model_providers.endpoint import ModelOptions
from tenure.runtime.observability import metrics
from tenure.runtime.settings import ConfigurationError, Secret
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

GOAL = [{"role": "user", "content": [text_block("Say hello.")]}]
HELLO = "sim-hello"


@pytest.fixture
async def simulators() -> AsyncIterator[list[ModelSimulator]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ModelSimulator()) for _ in range(3)]


def settings_of(name: str, url: str, rank: int = 1, **more: Any) -> EndpointSettings:
    return EndpointSettings(name=name, vendor="anthropic", rank=rank, base_url=url, api_key=Secret("sk-test"), **more)


@contextlib.asynccontextmanager
async def opened(
    endpoints: Sequence[EndpointSettings], longest_wait_seconds: float = 60.0
) -> AsyncIterator[ModelEndpoints]:
    clients = open_endpoints(
        endpoints, timeout_seconds=CALL_SECONDS, silence_seconds=CALL_SECONDS, prompt_caching=True, counts_tokens=True
    )
    async with ModelEndpoints(clients, longest_wait_seconds=longest_wait_seconds) as routed:
        yield routed


def limited(model: str = HELLO, task: str = "", **more: Any) -> LimitedCall:
    given = {"tenant": "t", "priority": Priority.NORMAL, "input_bytes": 100, "max_output_tokens": 1000, **more}
    return LimitedCall(task_id=task or str(uuid4()), model=model, **given)


async def ask(endpoints: ModelEndpoints, call: LimitedCall) -> tuple[ModelAnswer, EndpointPermit]:
    """Makes a call as the runner makes it."""
    permit = endpoints.admit_now(call) or await endpoints.admit(call)
    reported, failure = ModelCall(lambda _block, _text: None, lambda: None), None
    try:
        return await permit.answer(ModelRequest(call.model, GOAL, call.max_output_tokens), reported), permit
    except ModelCallFailed as error:
        failure = error
        raise
    finally:
        permit.close(reported.usage, failure)


def answered(simulator: ModelSimulator) -> int:
    return sum(call["answered"] for call in simulator.log.calls)


def refuse(simulator: ModelSimulator, count: int = 1, **fault: Any) -> None:
    simulator.faults.order(fault_from(fault, None), count=count, endpoint="messages", model=None)


async def test_calls_wait_and_are_not_refused(simulators: list[ModelSimulator]) -> None:
    """40 calls at once, of 30 that the bucket holds and one more each 20 ms, once one answer has stated the limits."""
    first = simulators[0]
    first.rate.set(RateLimits(requests_per_minute=3000))
    async with opened([settings_of("one", first.url)]) as endpoints:
        await ask(endpoints, limited())
        for buckets in first.rate._buckets.values():
            buckets["requests"].level = 30
        await ask(endpoints, limited())
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(ask(endpoints, limited()) for _ in range(40)))
    assert (answered(first), first.rate.refused) == (42, 0)


async def test_waiting_calls_send_one_probe_after_a_refusal(simulators: list[ModelSimulator]) -> None:
    """Nothing is known before the first refusal; afterwards one call goes alone."""
    first = simulators[0]
    refuse(first, 10, status=429, retry_after_seconds=3)
    async with opened([settings_of("one", first.url)]) as endpoints:
        herd = await asyncio.gather(*(ask(endpoints, limited()) for _ in range(10)), return_exceptions=True)
        assert all(isinstance(error, ModelCallFailed) for error in herd)
        assert endpoints.admit_now(limited()) is None, "it has to wait"
        refuse(first, 1, status=429, retry_after_seconds=0.2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            rest = await asyncio.gather(*(ask(endpoints, limited()) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(result, ModelCallFailed) for result in rest) == 1, "the probe, and no herd"


async def test_waiting_calls_go_in_fair_order(simulators: list[ModelSimulator]) -> None:
    """Tenants alternate, HIGH goes first, and a cancelled call leaves the line."""
    first = simulators[0]
    order: list[str] = []
    async with opened([settings_of("one", first.url)]) as endpoints:
        permit = await endpoints.admit(limited())
        permit._flight.refuse(3)

        async def take(name: str, **more: Any) -> None:
            taken = await endpoints.admit(limited(**more))
            order.append(name)
            taken._flight.hear(200, {})
            taken.close(TokenUsage(1, 1), None)

        tasks = [asyncio.create_task(take(f"a{number}", tenant="a")) for number in range(3)]
        tasks += [asyncio.create_task(take(f"b{number}", tenant="b")) for number in range(2)]
        tasks.append(asyncio.create_task(take("high", tenant="a", priority=Priority.HIGH)))
        leaving = asyncio.create_task(take("gone", tenant="c"))
        await asyncio.sleep(0)
        assert endpoints.waiting_by_endpoint() == {"one": 7}
        leaving.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*tasks)
        assert endpoints.waiting_by_endpoint() == {"one": 0}
    assert order[0] == "high"
    assert set(order) == {"high", "a0", "a1", "a2", "b0", "b1"}


@pytest.mark.parametrize("fault", [{"status": 529}, {"status": 500}, {"status": 429, "retry_after_seconds": 60}])
async def test_a_refused_call_moves(simulators: list[ModelSimulator], fault: dict[str, Any]) -> None:
    first, second, _ = simulators
    refuse(first, **fault)
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)]) as endpoints:
        _, permit = await ask(endpoints, limited())
    assert (permit.name, answered(first), answered(second)) == ("two", 0, 1)


async def test_a_refused_call_of_openai_moves(simulators: list[ModelSimulator]) -> None:
    first, second, _ = simulators
    refuse(first, status=529)
    settings = [
        EndpointSettings(
            name=name, vendor="openai", rank=rank, base_url=f"{simulator.url}/v1", api_key=Secret("sk-test")
        )
        for name, rank, simulator in (("one", 1, first), ("two", 2, second))
    ]
    async with opened([settings_of("other", simulators[2].url), *settings]) as endpoints:
        _, permit = await ask(endpoints, limited(f"openai/{HELLO}"))
    assert (permit.name, answered(second), len(simulators[2].log.calls)) == ("two", 1, 0)


async def test_a_call_moves_from_an_endpoint_that_is_down(simulators: list[ModelSimulator]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with opened([settings_of("one", down, 1), settings_of("two", simulators[1].url, 2)]) as endpoints:
            _, permit = await ask(endpoints, limited())
    assert permit.name == "two"


@pytest.mark.parametrize("fault", [{"broken_stream": 1}, {"overloaded": 1}])
async def test_an_answer_that_broke_is_not_repeated(simulators: list[ModelSimulator], fault: dict[str, Any]) -> None:
    first, second, _ = simulators
    refuse(first, **fault)
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)]) as endpoints:
        with pytest.raises(ModelCallFailed):
            await ask(endpoints, limited())
    assert len(second.log.calls) == 0


async def test_a_refused_request_does_not_move(simulators: list[ModelSimulator]) -> None:
    first, second, _ = simulators
    refuse(first, status=400)
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)]) as endpoints:
        with pytest.raises(ModelCallFailed) as failed:
            await ask(endpoints, limited())
    assert failed.value.error_class == FailureClass.INVALID_REQUEST
    assert len(second.log.calls) == 0


async def test_last_refusal_is_returned(simulators: list[ModelSimulator]) -> None:
    first, second, _ = simulators
    refuse(first, status=529)
    refuse(second, status=500)
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)]) as endpoints:
        with pytest.raises(ModelCallFailed) as failed:
            await ask(endpoints, limited())
    assert failed.value.error_class == FailureClass.SERVER_ERROR


async def test_an_open_circuit_is_not_asked(simulators: list[ModelSimulator]) -> None:
    first, second, _ = simulators
    refuse(first, 3, status=529)
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)]) as endpoints:
        for _ in range(6):
            await ask(endpoints, limited())
        assert endpoints.open_circuits() == {"one": True, "two": False}
        circuit = endpoints._line("one", f"anthropic/{HELLO}").circuit
        circuit._paused_until = 0.0  # the pause is over
        _, permit = await ask(endpoints, limited())
        assert (permit.name, endpoints.open_circuits()["one"]) == ("one", False)
    assert (len(first.log.calls), answered(second)) == (4, 6)


async def test_a_long_wait_moves_a_call(simulators: list[ModelSimulator]) -> None:
    """The first endpoint asks for a minute; a call waits for it no longer than it must."""
    first, second, _ = simulators
    refuse(first, status=429, retry_after_seconds=60)
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)], 0.1) as endpoints:
        assert (await ask(endpoints, limited()))[1].name == "two"
        assert (await ask(endpoints, limited()))[1].name == "two"
    assert len(first.log.calls) == 1


async def test_a_refused_call_does_not_join_a_long_line(simulators: list[ModelSimulator]) -> None:
    """It fails with the wait that its endpoint asks for, and its worker repeats it."""
    first, second, _ = simulators
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)], 1.0) as endpoints:
        refuse(first, 2, status=529)
        refuse(second, status=429, retry_after_seconds=60)
        with pytest.raises(ModelCallFailed):
            await ask(endpoints, limited())
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ModelCallFailed) as failed:
                await ask(endpoints, limited())
    assert failed.value.error_class == FailureClass.OVERLOADED
    assert len(second.log.calls) == 1


async def test_endpoints_have_their_own_names(simulators: list[ModelSimulator]) -> None:
    """The answer names the model that answered, which the bill then has."""
    first, second, _ = simulators
    one = settings_of("one", first.url, 1, models={"other": "sim-echo"})
    two = settings_of("two", second.url, 2, models={HELLO: "sim-echo"})
    async with opened([one, two]) as endpoints:
        answer, permit = await ask(endpoints, limited())
        assert (permit.name, answer.model) == ("two", "sim-echo")
        with pytest.raises(ModelCallFailed) as failed:
            await ask(endpoints, limited("sim-unlisted"))
    assert failed.value.error_class == FailureClass.NOT_FOUND
    assert "TENURE_MODELS_ENDPOINTS_FILE" in failed.value.message


async def test_a_task_keeps_its_endpoint(simulators: list[ModelSimulator]) -> None:
    """Three keys of one rank share the tasks, and each task meets its own cache with every call."""
    settings = [settings_of(f"key-{number}", simulator.url) for number, simulator in enumerate(simulators)]
    async with opened(settings) as endpoints:
        met: dict[str, set[str]] = {}
        for task in [str(number) for number in range(30)] * 3:
            _, permit = await ask(endpoints, limited(task=task))
            met.setdefault(task, set()).add(permit.name)
    assert all(len(names) == 1 for names in met.values())
    assert len(Counter(name for names in met.values() for name in names)) == 3


async def test_a_moved_task_stays_with_its_cache(simulators: list[ModelSimulator]) -> None:
    first, second, _ = simulators
    refuse(first, status=529)
    async with opened([settings_of("one", first.url, 1), settings_of("two", second.url, 2)]) as endpoints:
        assert (await ask(endpoints, limited(task="moved")))[1].name == "two"
        assert (await ask(endpoints, limited(task="moved")))[1].name == "two"
        assert (await ask(endpoints, limited(task="new")))[1].name == "one"


async def test_the_cached_share_of_the_input_is_counted(simulators: list[ModelSimulator]) -> None:
    def counted(kind: str) -> float | None:
        return metrics.read("tenure_models_input_tokens_total", endpoint="cached", kind=kind)

    messages = [{"role": "user", "content": [text_block("word " * 2000)]}]
    async with opened([settings_of("cached", simulators[0].url)]) as endpoints:
        for _ in range(2):
            call = limited()
            permit = await endpoints.admit(call)
            reported = ModelCall(lambda _block, _text: None, lambda: None)
            await permit.answer(ModelRequest(HELLO, messages, 100, is_repeated_soon=True), reported)
            permit.close(reported.usage, None)
    assert counted("cached") == counted("uncached") == 2500


async def test_platforms_are_opened_in_their_regions() -> None:
    regions = {"bedrock": "eu-central-1", "vertex": "europe-west1"}
    settings = [
        EndpointSettings(name=platform, vendor="anthropic", rank=1, platform=platform, region=region, project=project)
        for (platform, region), project in zip(regions.items(), ("", "p-1"), strict=True)
    ]
    async with opened(settings) as endpoints:
        for endpoint, region in zip(endpoints._endpoints, regions.values(), strict=True):
            provider: Any = endpoint.client._providers["anthropic"]
            assert region in str(provider._client.base_url)


def written(folder: Path, text: str) -> Path:
    (folder / "key").write_text("sk-secret\n")
    (folder / "endpoints.toml").write_text(text.replace("KEY", str(folder / "key")))
    return folder / "endpoints.toml"


def test_the_file_of_endpoints_is_read(tmp_path: Path) -> None:
    text = """
    [[endpoint]]
    name = "anthropic"
    vendor = "anthropic"
    api_key_file = "KEY"

    [[endpoint]]
    name = "bedrock-frankfurt"
    vendor = "anthropic"
    platform = "bedrock"
    region = "eu-central-1"
    models = { "claude-sonnet-4-5" = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0" }
    """
    first, second = read_endpoints(written(tmp_path, text), allows_insecure=False)
    assert (first.name, first.rank, first.api_key.reveal()) == ("anthropic", 1, "sk-secret")
    assert first.model("claude-sonnet-4-5") == "claude-sonnet-4-5"
    assert (second.rank, second.region) == (2, "eu-central-1")
    assert second.model("claude-sonnet-4-5") == "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
    assert second.model("claude-opus-4-8") is None


OWN = "[[endpoint]]\nname = 'a'\nvendor = 'openai'\nbase_url = 'http://127.0.0.1:8000/v1'\n"


def test_options_of_a_model_go_before_its_endpoints(tmp_path: Path) -> None:
    text = f"""
    {OWN}
    context_window_tokens = 32768
    silence_seconds = 900
    dialect = "deepseek"
    extra_headers = {{ "x-team" = "a" }}
    extra_body = {{ top_k = 20, provider = {{ order = ["x"] }} }}
    models."qwen3" = {{ name = "Qwen/Qwen3-32B", max_output_tokens = 4096, extra_body = {{ top_k = 40 }} }}
    models."plain" = "plain-1"
    """
    [endpoint] = read_endpoints(written(tmp_path, text), allows_insecure=False)
    assert [endpoint.model(name) for name in ("qwen3", "plain", "none")] == ["Qwen/Qwen3-32B", "plain-1", None]
    assert endpoint.options_of("plain-1") == ModelOptions(
        context_window_tokens=32768,
        silence_seconds=900,
        dialect="deepseek",
        extra_headers={"x-team": "a"},
        extra_body={"top_k": 20, "provider": {"order": ["x"]}},
    )
    own = endpoint.options_of("Qwen/Qwen3-32B")
    assert (own.max_output_tokens, own.context_window_tokens, own.extra_body["top_k"]) == (4096, 32768, 40)
    assert own.extra_body["provider"] == {"order": ["x"]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must have 1 to 32 tables"),
        ("endpoint = 5", "must have 1 to 32 tables"),
        ("[[endpoint]]\nname = 'a'", "vendor is missing"),
        ("[[endpoint]]\nname = 5\nvendor = 'openai'", "name: must be a string"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'anthropic'\nkey = 'sk'", "key: unknown"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'anthropic'\napi_key = 'sk'", "api_key: unknown"),
        ("[[endpoint]]\nname = 'A B'\nvendor = 'anthropic'\napi_key_file = 'KEY'", "name: must be"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'google'\napi_key_file = 'KEY'", "vendor: must be one of"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'openai'\nplatform = 'vertex'", "platform: must be one of"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'anthropic'", "api_key_file is missing"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'anthropic'\napi_key_file = '/none'", "api_key_file: "),
        ("[[endpoint]]\nname = 'a'\nvendor = 'anthropic'\nbase_url = 'http://far.away'", "base_url: others could"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'anthropic'\napi_key_file = 'KEY'\n" * 2, "2 endpoints have this name"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'openai'\nstream = 'no'", "stream: must be true or false"),
        ("[[endpoint]]\nname = 'a'\nvendor = 'anthropic'\napi_key_file = 'KEY'\nstream = false", "stream: only"),
        (f"{OWN}context_window_tokens = 10", "context_window_tokens: must be 1024"),
        (f"{OWN}max_output_tokens = -1", "max_output_tokens: must not be negative"),
        (f"{OWN}silence_seconds = 'long'", "silence_seconds: must be a number"),
        (f"{OWN}dialect = 'klingon'", "dialect: must be one of openai"),
        (f"{OWN}extra_headers = {{ 'content-length' = '1' }}", "extra_headers: 'content-length': must be a header"),
        (f'{OWN}extra_headers = {{ "x-a" = "a\\nb" }}', "extra_headers: 'x-a': must be a header"),
        (f"{OWN}extra_body = {{ max_tokens = 1 }}", "extra_body: must not have max_tokens"),
        (f"{OWN}models.m = {{ size = 1 }}", "models.m: size: unknown"),
        (f"{OWN}models.m = {{ max_output_tokens = 'x' }}", "models.m: max_output_tokens: must be a whole number"),
        (f"{OWN}models.m = {{ extra_body = {{ model = 'x' }} }}", "models.m: extra_body: must not have model"),
        ("[[endpoint", "TENURE_MODELS_ENDPOINTS_FILE"),
    ],
)
def test_invalid_endpoints_file_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_endpoints(written(tmp_path, text), allows_insecure=False)
    assert problem in str(refused.value)
    assert "sk-secret" not in str(refused.value)
