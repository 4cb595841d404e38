"""A process that would call models through a SOCKS proxy does not start."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pydantic_ai  # noqa: F401  a library of agents
import pytest

from services.models.endpoints.settings import read_endpoints
from services.models.settings import ModelsSettings
from services.worker.control.functions import load_functions
from services.worker.main import WorkerSettings
from tenure.runtime.settings import ConfigurationError, load

NEEDED = {"TENURE_TEST_POSTGRES_DSN": "postgresql://models", "TENURE_TEST_VERIFYING_KEYS_FILE": "keys.json"}
KEYS = {"ANTHROPIC_API_KEY": "key", "OPENAI_BASE_URL": "https://models.example/v1"}


@pytest.fixture(autouse=True)
def socks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")


@pytest.mark.parametrize("kind", [WorkerSettings, ModelsSettings])
def test_a_process_that_calls_models_is_refused(kind: type) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(kind, KEYS | NEEDED, prefix="TENURE_TEST_")
    for variable, host in (("ANTHROPIC_BASE_URL", "the provider's host"), ("OPENAI_BASE_URL", "models.example")):
        assert any(variable in each and "SOCKS" in each and host in each for each in refused.value.problems)


@pytest.mark.parametrize(("name", "value"), [("HTTPS_PROXY", "http://127.0.0.1:3128"), ("NO_PROXY", "models.example")])
def test_an_endpoint_that_is_reached_otherwise_is_accepted(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    load(WorkerSettings, {**KEYS, "ANTHROPIC_API_KEY": "", "TENURE_TEST_MODEL": "openai/m"}, prefix="TENURE_TEST_")


def test_an_endpoint_of_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.toml"
    file.write_text('[[endpoint]]\nname = "a"\nvendor = "openai"\nrank = 1\nbase_url = "https://models.example"\n')
    with pytest.raises(ConfigurationError, match="base_url: a SOCKS proxy"):
        read_endpoints(file, allows_insecure=False)


def test_a_worker_of_agents_needs_what_their_clients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"socksio": None}
    monkeypatch.setattr("tenure.model_providers.proxies.find_spec", found.get)
    with pytest.raises(ConfigurationError, match="socksio"):
        load_functions([])
    found["socksio"] = importlib.util.find_spec("json")  # type: ignore[assignment]  # any module
    assert load_functions([]) == {}
