"""The model runner beside deploy/compose.yaml. The Helm chart has it, too: test_helm_services.py."""

from __future__ import annotations

import re
from typing import Any

import yaml

from services.models.settings import ModelsSettings
from tenure.runtime.settings import describe
from tenure.serve import command_line
from tests.support.compose_file import DEPLOY, compose_services

CLOSING_SECONDS = 30
_FIELDS: Any = ModelsSettings.__dataclass_fields__
DRAIN_SECONDS = _FIELDS["drain_seconds"].default


def known_variables() -> set[str]:
    return set(re.findall(r"^([A-Z][A-Z0-9_]+)", describe(ModelsSettings, prefix="TENURE_MODELS_"), re.MULTILINE))


def composed() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.models.yaml").read_text())["services"]
    return services


def is_secret(variable: str) -> bool:
    return bool(re.search("PASSWORD|_KEY|DSN|SECRET|TOKEN", variable)) and not variable.endswith("_FILE")


def test_compose_confines_it_as_the_other_services() -> None:
    for name, like in (("models", "checkpoint"), ("migrate-models", "migrate-checkpoint")):
        service, other = composed()[name], compose_services()[like]
        for key in ("image", "user", "read_only", "cap_drop", "security_opt", "tmpfs"):
            assert service[key] == other[key], key
        assert set(service["volumes"]) == {
            f"./secrets/{name}:/run/tenure/own:ro",
            "./secrets/public:/run/tenure/public:ro",
        }
    assert composed()["models"]["networks"] == ["services", "database", "egress"]
    assert "ports" not in composed()["models"]


def test_compose_knows_its_settings_and_has_no_secret() -> None:
    for name in ("models", "migrate-models"):
        variables = composed()[name]["environment"]
        assert variables.keys() <= known_variables()
        assert not any(map(is_secret, variables))
    assert composed()["worker"]["environment"].keys() == {"TENURE_WORKER_MODELS_ADDRESS"}
    assert composed()["models"]["healthcheck"]["test"] == ["CMD", "python", *command_line("models", "health")[1:]]
    assert int(composed()["models"]["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS + CLOSING_SECONDS
