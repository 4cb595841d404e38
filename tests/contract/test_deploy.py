"""What deploy/ says is what the services understand."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tenure.runtime.settings import load

DEPLOY = Path(__file__).parents[2] / "deploy"
SERVICES = ("gateway", "coordinator", "checkpoint", "tools", "worker")


def compose() -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return value


def settings_type(service: str) -> type[Any]:
    """A service's Settings, wherever its main.py has them from."""
    value: type[Any] = getattr(importlib.import_module(f"services.{service}.main"), f"{service.capitalize()}Settings")
    return value


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_understands_its_environment(service: str) -> None:
    environment = {
        name: re.sub(r"\$\{\w+[^}]*\}", "given", value) for name, value in compose()[service]["environment"].items()
    }
    load(settings_type(service), environment, prefix=f"TENURE_{service.upper()}_")


def test_the_ledger_and_the_workers_have_one_default_model() -> None:
    ledger, worker = (compose()[service]["environment"] for service in ("checkpoint", "worker"))
    assert ledger["TENURE_CHECKPOINT_DEFAULT_MODEL"] == worker["TENURE_WORKER_MODEL"]


def test_etcd_is_none_of_those_that_corrupt_data() -> None:
    version = tuple(int(part) for part in compose()["etcd"]["image"].rpartition(":v")[2].split("."))
    assert version >= (3, 5, 33)
    assert version[:2] != (3, 6) or version >= (3, 6, 14)


def test_every_service_of_the_installation_is_deployed() -> None:
    assert set(SERVICES) <= set(compose())


def test_the_image_runs_as_nobody_special() -> None:
    users = re.findall(r"^USER (.+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert users
    assert users[-1] not in {"root", "0"}


def test_the_services_run_as_the_user_that_the_keys_are_given_to() -> None:
    users = re.findall(r"--uid (\d+)|^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    matches = re.findall(r"chown -R (\d+) deploy/keys", (DEPLOY / "compose.yaml").read_text())
    assert {uid for pair in users for uid in pair if uid} == set(matches)
