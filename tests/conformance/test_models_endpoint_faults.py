"""Endpoints of the model runner that hang or are set up wrongly, and tenants in a hurry."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devstack.simulator.scenario import fault_from
from devstack.simulator.simulator import ModelSimulator
from services.models import failover
from services.models.endpoints import routing
from services.models.endpoints.opening import open_endpoints
from services.models.endpoints.routing import ModelEndpoints
from services.models.endpoints.settings import read_endpoints
from services.models.limits.key_queue import LineCaller
from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import text_of
from tenure.domain.rate_limits import CallSize
from tenure.domain.retry import FailureClass, class_of_status
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelRequest
from tenure.runtime.settings import ConfigurationError
from tests.conformance.test_models_limits import GOAL, HELLO, ask, limited, opened, settings_of
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def hasty(endpoints: ModelEndpoints, seconds: float) -> ModelCallFailed:
    """The failure of a call whose own timeout is this one."""
    permit = endpoints.admit_now(limited()) or await endpoints.admit(limited())
    call = ModelCall(lambda _block, _text: None, lambda: None)
    with pytest.raises(ModelCallFailed) as failed:
        await permit.answer(ModelRequest(HELLO, GOAL, 100, timeout_seconds=seconds), call)
    permit.close(call.usage, failed.value)
    return failed.value


async def test_short_timeouts_of_a_tenant_close_no_endpoint(silent_url: str) -> None:
    async with opened([settings_of("one", silent_url)]) as endpoints:
        for _ in range(4):
            assert (await hasty(endpoints, 0.1)).error_class is FailureClass.TIMEOUT
        assert endpoints.open_circuits() == {"one": False}


async def test_an_endpoint_that_is_silent_is_closed(silent_url: str) -> None:
    """However long the call itself would wait."""
    clients = open_endpoints(
        [settings_of("one", silent_url)],
        timeout_seconds=CALL_SECONDS, silence_seconds=0.2, prompt_caching=True, counts_tokens=True,
    )  # fmt: skip
    async with ModelEndpoints(clients, longest_wait_seconds=60.0) as endpoints:
        for _ in range(3):
            assert (await hasty(endpoints, CALL_SECONDS)).error_class is FailureClass.SILENT
        assert endpoints.open_circuits() == {"one": True}


async def test_a_sent_call_waits_for_no_other_endpoint_for_long() -> None:
    """The other endpoint seems free, and waits for the answer to its probe: no runner may take the sent call over."""
    async with contextlib.AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(ModelSimulator()) for _ in range(2)]
        first.faults.order(fault_from({"status": 529}, None), count=1, endpoint="messages", model=None)
        settings = [settings_of("one", first.url, 1), settings_of("two", second.url, 2)]
        endpoints = await stack.enter_async_context(opened(settings, 0.5))
        queue, caller = endpoints._line("two", f"anthropic/{HELLO}").queue, LineCaller("t", Priority.NORMAL)
        refused = queue.take_now(caller, CallSize(1, 1))
        assert refused is not None
        refused.refuse(0.0)
        probe = queue.take_now(caller, CallSize(1, 1))
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(ModelCallFailed) as failed:
                await ask(endpoints, limited())
        assert failed.value.error_class is FailureClass.OVERLOADED
        assert endpoints.waiting_by_endpoint() == {"one": 0, "two": 0}
        assert probe is not None
        probe.end(None)


async def test_stopped_call_is_not_sent_by_another_endpoint() -> None:
    """The stop comes while the refused call waits for the other endpoint."""
    async with contextlib.AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(ModelSimulator()) for _ in range(2)]
        first.faults.order(fault_from({"status": 529}, None), count=1, endpoint="messages", model=None)
        settings = [settings_of("one", first.url, 1), settings_of("two", second.url, 2)]
        endpoints = await stack.enter_async_context(opened(settings))
        queue, caller = endpoints._line("two", f"anthropic/{HELLO}").queue, LineCaller("t", Priority.NORMAL)
        refused = queue.take_now(caller, CallSize(1, 1))
        assert refused is not None
        refused.refuse(0.0)
        probe = queue.take_now(caller, CallSize(1, 1))
        assert probe is not None
        permit = endpoints.admit_now(limited())
        assert permit is not None
        call = ModelCall(lambda _block, _text: None, lambda: None)
        asking = asyncio.create_task(permit.answer(ModelRequest(HELLO, GOAL, 100), call))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not permit.is_moving:
                await asyncio.sleep(0.01)
            call.may_go_on = lambda: False
            probe.end(None)
            with pytest.raises(ModelCallFailed) as failed:
                await asking
        permit.close(call.usage, failed.value)
        assert (failed.value.error_class, permit.is_moving) == (FailureClass.INTERRUPTED, False)
        assert list(second.log.calls) == []


@pytest.mark.parametrize("status", [500, 529, 401, 402])
async def test_one_call_tries_a_failing_endpoint_for_all(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """An outage costs the provider three requests and one for each pause, whatever the number of tasks."""
    monkeypatch.setattr(failover, "FIRST_PAUSE_SECONDS", 30.0)
    async with contextlib.AsyncExitStack() as stack:
        only = await stack.enter_async_context(ModelSimulator())
        only.faults.order(fault_from({"status": status}, None), count=3, endpoint="messages", model=None)
        endpoints = await stack.enter_async_context(opened([settings_of("one", only.url, 1)]))
        for _ in range(3):
            with pytest.raises(ModelCallFailed):
                await ask(endpoints, limited())
        sent = len(only.log.calls)
        for _ in range(20):
            with pytest.raises(ModelCallFailed) as avoided:
                await ask(endpoints, limited())
            assert (avoided.value.error_class, avoided.value.was_sent) == (class_of_status(status), False)
            # random beyond the pause, of which some time has passed
            assert 15.0 < (avoided.value.retry_after_seconds or 0) <= 1.5 * 30.0
        assert len(only.log.calls) == sent
        monkeypatch.setattr(routing, "monotonic", lambda: time.monotonic() + 30.0)
        unsent = endpoints.admit_now(limited())
        assert unsent is not None
        with pytest.raises(ModelCallFailed, match="tries it just now"):
            await endpoints.admit(limited())
        unsent.close(TokenUsage(), None)
        await ask(endpoints, limited())
        assert endpoints.open_circuits() == {"one": False}


async def test_failing_model_keeps_the_endpoint_open_for_others() -> None:
    """Any task may name a model that its provider cannot serve at the moment."""
    async with contextlib.AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(ModelSimulator()) for _ in range(2)]
        first.faults.order(fault_from({"status": 500}, None), count=3, endpoint="messages", model="sim-echo")
        settings = [settings_of("one", first.url, 1), settings_of("two", second.url, 2)]
        endpoints = await stack.enter_async_context(opened(settings))
        for _ in range(4):
            assert (await ask(endpoints, limited("sim-echo")))[1].name == "two"
        assert endpoints.open_circuits() == {"one": True, "two": False}
        assert (await ask(endpoints, limited()))[1].name == "one"


@pytest.mark.parametrize(
    ("key", "base_url", "problem"),
    [
        ("", "", "is empty"),
        ("sk secret", "", "the key has a space"),
        ("sk-secret\nsk-other", "", "the key has a space, a line break"),
        ("sk-sécret", "", "character that cannot be sent"),
        ("sk-secret", "ftp://far.away", "base_url: must be a URL"),
        ("sk-secret", "far.away/v1", "base_url: must be a URL"),
        ("sk-secret", "https://[::1", "base_url: must be a URL"),
        ("sk-secret", "http://me:hidden@far.away", "base_url: others could read"),
    ],
)
def test_an_endpoint_that_cannot_be_asked_is_refused(tmp_path: Path, key: str, base_url: str, problem: str) -> None:
    (tmp_path / "key").write_text(f"{key}\n")
    path = tmp_path / "endpoints.toml"
    path.write_text(
        f'[[endpoint]]\nname = "a"\nvendor = "anthropic"\napi_key_file = "{tmp_path}/key"\nbase_url = "{base_url}"\n'
    )
    with pytest.raises(ConfigurationError) as refused:
        read_endpoints(path, allows_insecure=False)
    assert problem in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "hidden" not in str(refused.value)


async def test_an_endpoint_of_the_file_that_does_not_stream(tmp_path: Path) -> None:
    async with ModelSimulator() as simulator:
        text = f"[[endpoint]]\nname = 'a'\nvendor = 'openai'\nbase_url = '{simulator.url}/v1'\nstream = false"
        file = tmp_path / "endpoints.toml"
        file.write_text(text)
        async with opened(read_endpoints(file, allows_insecure=False)) as endpoints:
            answer, _ = await ask(endpoints, limited("openai/sim-hello"))
        assert text_of(answer.content)
        assert [call["stream"] for call in simulator.log.calls] == [False]
