"""deploy/helm/tenure as Helm renders it, for the values in deploy/helm/values. Skips without the library of Helm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import pytest
import yaml

from tests.support.compose_file import DEPLOY, FAST_LOADER

CHART: Final = DEPLOY / "helm" / "tenure"
VALUES: Final = DEPLOY / "helm" / "values"
EXAMPLES: Final = ("minimal", "production", "keda")
DIRECT: Final = "direct"
"""The default values without the model runner. Its workers need a secret with the key of the model."""
ALL: Final = ("", DIRECT, *EXAMPLES)
RELEASE: Final = "tenure"
NAMESPACE: Final = "agents"
Document = dict[str, Any]


def helm() -> Any:
    """Helm as a library. Its wheel exists for Linux on x86-64 and for macOS."""
    return pytest.importorskip("helm_python", reason="helm-python-sdk has no wheel for this machine")


def example(name: str) -> Document:
    """The values of an example."""
    loaded: Document = yaml.load((VALUES / f"{name}.yaml").read_text(encoding="utf-8"), FAST_LOADER)
    return loaded


def values_of(name: str) -> Document:
    """The values of one of ALL. "": the default values."""
    if name == DIRECT:
        return {"models": {"enabled": False}, "worker": {"secret": f"{RELEASE}-worker-{DIRECT}"}}
    return example(name) if name else {}


def render(values: Mapping[str, Any]) -> list[Document]:
    """All documents of the chart. Raises HelmError for values that the chart refuses."""
    with helm().Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        files = chart.render(dict(values), name=RELEASE, namespace=NAMESPACE)
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.load_all(text, FAST_LOADER) if document]


@cache
def rendered(name: str) -> list[Document]:
    """The documents of one of ALL."""
    return render(values_of(name))


class Manifests:
    """The documents of one example, found by what they are."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents

    def of_kind(self, kind: str) -> dict[str, Document]:
        """The documents of a kind by name."""
        return {each["metadata"]["name"]: each for each in self.documents if each["kind"] == kind}

    def pods(self) -> Iterator[tuple[str, Document]]:
        """Each template of a pod, of deployments and jobs, with the name of its document."""
        for kind in ("Deployment", "Job"):
            for name, document in self.of_kind(kind).items():
                yield name, document["spec"]["template"]


def manifests(name: str) -> Manifests:
    """The documents of one of ALL."""
    return Manifests(rendered(name))


def component(template: Document) -> str:
    """The component of a pod: the name of its service, or of its migration."""
    label: str = template["metadata"]["labels"]["app.kubernetes.io/component"]
    return label


def container(template: Document) -> Document:
    """The one container of a pod."""
    (only,) = template["spec"]["containers"]
    found: Document = only
    return found


def environment(template: Document) -> dict[str, str]:
    """The variables of a pod, as the kubelet sets them."""
    variables = {each["name"]: each.get("value", "") for each in container(template)["env"]}
    if "POD_IP" in variables:
        address = variables.pop("POD_IP") or "10.0.0.7"
        variables = {name: value.replace("$(POD_IP)", address) for name, value in variables.items()}
    return variables
