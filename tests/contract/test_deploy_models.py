"""The model runner of deploy/, which is optional: beside deploy/compose.yaml, and in a folder of deploy/kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from services.models.settings import ModelsSettings
from tenure.runtime.settings import describe
from tenure.serve import command_line
from tests.contract.test_helm_chart import VERSIONS
from tests.support.compose_file import DEPLOY, compose_services
from tests.support.helm_chart import RELEASE, rendered

FOLDER = DEPLOY / "kubernetes" / "models"
CLOSING_SECONDS = 30
_FIELDS: Any = ModelsSettings.__dataclass_fields__
DRAIN_SECONDS = _FIELDS["drain_seconds"].default


def known_variables() -> set[str]:
    return set(re.findall(r"^([A-Z][A-Z0-9_]+)", describe(ModelsSettings, prefix="TENURE_MODELS_"), re.MULTILINE))


def composed() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.models.yaml").read_text())["services"]
    return services


def documents() -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(FOLDER).glob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def named(kind: str, name: str) -> dict[str, Any]:
    (document,) = [one for one in documents() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return document


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


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_understands_the_model_runner(version: str) -> None:
    assert len(documents()) == 8
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_kubernetes_runs_it_as_compose_does() -> None:
    pod = named("Deployment", "tenure-models")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {one["name"] for one in container["env"]}
    assert variables - known_variables() == {"POD_IP"}
    assert not any(map(is_secret, variables))
    required = {name for name in composed()["models"]["environment"] if name.endswith(("_FILE", "_ADDRESS"))}
    assert required - variables == {"OPENAI_API_KEY_FILE"}
    assert pod["terminationGracePeriodSeconds"] > DRAIN_SECONDS + CLOSING_SECONDS
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    rule = named("NetworkPolicy", "tenure-models")["spec"]["ingress"][0]
    callers = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]}
    assert callers == {"worker", "models"}


def test_kubernetes_reaches_the_release_of_the_chart() -> None:
    """The labels, the names and the secrets are those of a release `tenure`."""
    for document in documents():
        text = yaml.safe_dump(document)
        assert document["metadata"]["name"].startswith(f"{RELEASE}-")
        assert set(re.findall(r"app.kubernetes.io/instance: (\S+)", text)) <= {RELEASE}
    (container,) = named("Deployment", "tenure-models")["spec"]["template"]["spec"]["containers"]
    (address,) = [one["value"] for one in container["env"] if one["name"] == "TENURE_MODELS_CHECKPOINT_ADDRESS"]
    services = {one["metadata"]["name"] for one in rendered("") if one["kind"] == "Service"}
    assert address.partition(":")[0] in services
