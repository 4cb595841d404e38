"""The processes that deploy/helm/tenure starts: what each is given, where it listens, whom it reaches, how it ends."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from edges.tools_config import read_config
from services.checkpoint.traces.settings import TraceSettings
from services.coordinator.pools import parse_pools
from tenure.domain.outbound import Networks
from tenure.runtime.security.certificate_files import CertificateFiles
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import load
from tenure.serve import command_line
from tests.support.compose_file import DEPLOY, ROOT, SERVICES
from tests.support.helm_chart import (
    ALL,
    CHART,
    DIRECT,
    RELEASE,
    Document,
    Manifests,
    component,
    container,
    environment,
    manifests,
    render,
    rendered,
    values_of,
)
from tests.support.network_policies import Outside, Pod, connections, entering, is_isolated, leaving

CLOSING_SECONDS = 30
DRAIN_SECONDS = 10
"""Of a service without a setting for it."""
PORTS = {"gateway": 8470, "coordinator": 8471, "checkpoint": 8472, "tools": 8473, "worker": 8474, "models": 8477}
INTERNET = Outside(None, ("ipBlock",))
STORE = ("namespaceSelector",)
OWN_SECRETS = {
    "tenure-worker-shared": "worker",
    "tenure-worker-acme": "worker",
    "tenure-worker-batch": "worker-with-key",
    "tenure-worker-direct": "worker-with-key",
}
"""Secrets of an example that are made as one of the folders is."""
TO_PORT_8000 = [{"ports": [{"port": 8000}]}]


def services_of(name: str) -> set[str]:
    """The services of one of ALL."""
    return set(SERVICES) - ({"models"} if name == DIRECT else set())


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python -m deploy.prepare create` makes, and a worker's secret with the key of the model."""
    folder = tmp_path_factory.mktemp("helm") / "secrets"
    command = [sys.executable, str(DEPLOY / "prepare.py"), "create", str(folder), "--keep-owner"]
    subprocess.run(command, input="sk-planted", capture_output=True, text=True, check=True)
    shutil.copytree(folder / "worker", folder / "worker-with-key")
    shutil.copy(folder / "models" / "anthropic-api-key", folder / "worker-with-key")
    return folder


def settings_type(service: str) -> type[Any]:
    value: type[Any] = getattr(importlib.import_module(f"services.{service}.main"), f"{service.capitalize()}Settings")
    return value


def mounted(template: Document, secrets: Path, folder: Path, documents: list[Document]) -> dict[str, Path]:
    """Where the volumes of a pod are on this machine, by the paths of their mounts."""
    maps = {each["metadata"]["name"]: each for each in documents if each["kind"] == "ConfigMap"}
    volumes = {each["name"]: each for each in template["spec"]["volumes"]}
    places: dict[str, Path] = {}
    for mount in container(template)["volumeMounts"]:
        volume = volumes[mount["name"]]
        if "secret" in volume:
            name = volume["secret"]["secretName"]
            places[mount["mountPath"]] = secrets / OWN_SECRETS.get(name, name.removeprefix(f"{RELEASE}-"))
        elif "configMap" in volume:
            place = places[mount["mountPath"]] = folder / volume["configMap"]["name"]
            place.mkdir(exist_ok=True)
            for file, text in maps[volume["configMap"]["name"]]["data"].items():
                (place / file).write_text(text)
    return places


@pytest.mark.parametrize("name", ALL)
def test_every_process_has_the_settings_it_needs(name: str, secrets: Path, tmp_path: Path) -> None:
    """Each loads its environment with the files of its secrets, so none is missing, unknown or malformed."""
    loaded = set()
    for pod, template in manifests(name).pods():
        service = component(template).removeprefix("migrate-")
        places = mounted(template, secrets, tmp_path, rendered(name))
        variables = environment(template)
        for variable, value in variables.items():
            if variable.endswith("_FILE"):
                path = next(str(places[at]) + value[len(at) :] for at in places if value.startswith(f"{at}/"))
                assert Path(path).is_file(), f"{pod}: {value}"
                variables[variable] = path
        settings = load(settings_type(service), variables, prefix=f"TENURE_{service.upper()}_")
        assert not settings.common.allow_insecure_network
        if component(template) == service:  # a migration serves no caller
            files = CertificateFiles(settings.common.tls)
            assert files.read().identity(files.installation).name.split("/")[-2] == service
            loaded.add(service)
    assert loaded == services_of(name)


def test_configured_pools_and_tools_are_understood(tmp_path: Path) -> None:
    maps = manifests("production").of_kind("ConfigMap")
    pools = parse_pools(maps["tenure-pools"]["data"]["pools.yaml"].encode())
    assert {pool.name for pool in pools} == {"shared", "acme"}
    (tmp_path / "tools.yaml").write_text(maps["tenure-tools"]["data"]["tools.yaml"])
    assert read_config(tmp_path / "tools.yaml", {"TICKETS_TOKEN": "sk-1"}).mcp_servers
    changed = {"tools": {"config": {"mcp_servers": {"a": {"url": "https://a.example/mcp"}}}}}
    first, second = (
        next(each for each in documents if each["kind"] == "Deployment" and each["metadata"]["name"] == "tenure-tools")
        for documents in (rendered("production"), render(changed))
    )
    notes = [each["spec"]["template"]["metadata"]["annotations"]["tenure/config"] for each in (first, second)]
    assert notes[0] != notes[1]  # so that a change replaces the pods


@pytest.mark.parametrize("name", ALL)
def test_a_pool_serves_its_own_queues(name: str) -> None:
    values = {each: {"default": "default"} for each in ("", DIRECT, "minimal")}
    values |= {"production": {"shared": "default", "acme": "acme,acme-batch"}}
    values |= {"keda": {"default": "default", "urgent": "default", "batch": "batch,batch.low"}}
    pools = {
        template["metadata"]["labels"]["tenure/pool"]: environment(template)["TENURE_WORKER_QUEUES"]
        for _, template in manifests(name).pods()
        if component(template) == "worker"
    }
    assert pools == values[name]


@pytest.mark.parametrize("name", ALL)
def test_every_port_named_is_listened_on(name: str) -> None:
    found = manifests(name)
    listened: dict[str, dict[str, int]] = {}
    for _, template in found.pods():
        if "ports" in container(template):
            ports = {each["name"]: each["containerPort"] for each in container(template)["ports"]}
            variables = environment(template)
            addresses = {value for variable, value in variables.items() if variable.endswith("_LISTEN")}
            assert {f"0.0.0.0:{port}" for port in ports.values()} == addresses
            listened[component(template)] = ports
    expected = {service: port for service, port in PORTS.items() if service in services_of(name)}
    assert {service: ports["grpc"] for service, ports in listened.items()} == expected
    for service in found.of_kind("Service").values():
        named = listened[service["spec"]["selector"]["app.kubernetes.io/component"]]
        for each in service["spec"]["ports"]:
            target = each.get("targetPort", each["port"])
            assert named.get(target, target) == named[each["name"]]
    for policy in found.of_kind("NetworkPolicy").values():
        own = policy["spec"]["podSelector"]["matchLabels"].get("app.kubernetes.io/component", "")
        for rule in policy["spec"].get("ingress", ()):
            assert {each["port"] for each in rule["ports"]} <= set(listened[own].values())
    for ingress in found.of_kind("Ingress").values():
        backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        names = {each["name"] for each in found.of_kind("Service")[backend["name"]]["spec"]["ports"]}
        assert backend["port"]["name"] in names


@pytest.mark.parametrize("name", ALL)
def test_addresses_lead_to_services_of_the_chart(name: str) -> None:
    services = {
        f"{service}:{port['port']}"
        for service, document in manifests(name).of_kind("Service").items()
        for port in document["spec"]["ports"]
        if document["spec"].get("clusterIP") == "None"
    }
    for _, template in manifests(name).pods():
        for variable, value in environment(template).items():
            if variable.endswith(("_ADDRESS", "_ADDRESSES")):
                assert value in services, variable


@pytest.mark.parametrize("name", ALL)
def test_pod_has_time_to_drain_and_a_health_check(name: str) -> None:
    for pod, deployment in manifests(name).of_kind("Deployment").items():
        template = deployment["spec"]["template"]
        service = component(template)
        variables = environment(template)
        drain = float(variables.get(f"TENURE_{service.upper()}_DRAIN_SECONDS", DRAIN_SECONDS))
        assert template["spec"]["terminationGracePeriodSeconds"] >= drain + CLOSING_SECONDS, pod
        for probe in ("startupProbe", "readinessProbe"):
            asked = container(template)[probe]["exec"]["command"]
            assert asked == ["python", *command_line(service, "health")[1:]]
        budget = manifests(name).of_kind("PodDisruptionBudget")[pod]["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == deployment["spec"]["selector"]
        assert budget["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_drain_times_that_services_have_are_set() -> None:
    with_drain = {service for service in PORTS if "drain_seconds" in settings_type(service).__dataclass_fields__}
    pods = dict(manifests("production").pods())
    set_here = {
        component(pod) for pod in pods.values() if f"TENURE_{component(pod).upper()}_DRAIN_SECONDS" in environment(pod)
    }
    assert set_here == with_drain


@pytest.mark.parametrize("name", ALL)
def test_a_container_is_confined(name: str) -> None:
    for pod, template in manifests(name).pods():
        own, context = container(template)["securityContext"], template["spec"]["securityContext"]
        assert context["runAsNonRoot"], pod
        assert context["runAsUser"] == context["fsGroup"] == 10001
        assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not template["spec"]["automountServiceAccountToken"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(template["spec"])
        sandboxing = component(template) == "tools" and name != "minimal"
        assert own["seccompProfile"]["type"] == ("Unconfined" if sandboxing else "RuntimeDefault")
        assert own.get("procMount", "Default") == ("Unmasked" if sandboxing else "Default")
        assert template["spec"].get("hostUsers", True) != sandboxing
        written = [each["mountPath"] for each in container(template)["volumeMounts"] if not each.get("readOnly")]
        assert written == ["/tmp", "/var/lib/tenure/workspaces"][: 2 if component(template) == "tools" else 1]
        assert "limits" in container(template)["resources"]


@pytest.mark.parametrize("name", ALL)
def test_no_secret_is_in_the_manifests(name: str) -> None:
    """Secrets are referred to by name, and each process mounts its own only."""
    assert manifests(name).of_kind("Secret") == {}
    for document in manifests(name).of_kind("ConfigMap").values():
        for text in document["data"].values():
            for value in re.findall(r"(?i)(?:authorization|token|password|secret|key)\S*:\s*(.+)", text):
                assert "${" in value
    owners: dict[str, str] = {}
    for pod, template in manifests(name).pods():
        for variable, value in environment(template).items():
            assert variable.endswith("_FILE") or not re.search("PASSWORD|_KEY|DSN|SECRET|TOKEN", variable)
            assert not re.search(r"://[^/]*@", value), variable
        names = {each["secret"]["secretName"] for each in template["spec"]["volumes"] if "secret" in each}
        assert f"{RELEASE}-public" in names
        (own,) = names - {f"{RELEASE}-public"}
        assert owners.setdefault(own, component(template)) == component(template), pod


NAMES = {"model runner": "models"}
"""What the map calls a service whose name is another."""


def calls_of_the_map() -> dict[str, str]:
    """Whom each process calls, as the table of ARCHITECTURE.md says."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w ]+) \| .+ \| (.+) \|$", text, re.MULTILINE)
    found = {NAMES.get(name, name): calls for name, calls in rows if NAMES.get(name, name) in PORTS}
    assert set(found) == set(PORTS)
    return found


def is_called(service: str, calls: str) -> bool:
    names = {service, *(name for name, named in NAMES.items() if named == service)} - set(NAMES.values())
    return any(re.search(rf"\b{name}s?\b", calls) for name in names)


def pods_of(name: str) -> dict[str, Pod]:
    found = {}
    for _, template in manifests(name).pods():
        ports = frozenset(each["containerPort"] for each in container(template).get("ports", ()))
        found[component(template)] = Pod(component(template), template["metadata"]["labels"], ports)
    return found


@pytest.mark.parametrize("name", ["", DIRECT, "production"])
def test_processes_reach_their_peers_only(name: str) -> None:
    policies = list(manifests(name).of_kind("NetworkPolicy").values())
    pods = pods_of(name)
    for pod in pods.values():
        assert is_isolated(policies, pod, "ingress")
        assert is_isolated(policies, pod, "egress")
    expected = {
        (caller, callee, PORTS[callee])
        for caller, calls in calls_of_the_map().items()
        for callee in PORTS
        if {caller, callee} <= services_of(name) and is_called(callee, calls)
    }
    assert connections(policies, list(pods.values())) == expected


def test_listed_processes_leave_the_cluster() -> None:
    policies, pods = list(manifests("production").of_kind("NetworkPolicy").values()), pods_of("production")
    outside = {
        "etcd": Outside(2379, STORE),
        "Postgres": Outside(5432, STORE),
        "a collector": Outside(4317, STORE),
        "webhooks": INTERNET,
        "HTTP servers": INTERNET,
        "the model": INTERNET,
    }
    for service, calls in calls_of_the_map().items():
        calls = calls.replace("or the model", "")  # the workers of this example have model runners  # noqa: PLW2901
        assert leaving(policies, pods[service]) == {rule for word, rule in outside.items() if word in calls}, service
        reached: dict[int, tuple[str, ...]] = {PORTS[service] + 1000: STORE}
        if service == "gateway":
            reached |= {8470: (), 8480: ()}
        assert entering(policies, pods[service]) == reached
    for migration in ("migrate-checkpoint", "migrate-tools", "migrate-models"):
        assert leaving(policies, pods[migration]) == {Outside(5432, STORE)}
        assert entering(policies, pods[migration]) == {}
    plain = list(manifests("").of_kind("NetworkPolicy").values())
    assert leaving(plain, pods_of("")["checkpoint"]) == {Outside(5432, ())}  # no webhooks, no collector


def blocks_of(peers: list[Document]) -> list[tuple[Any, list[Any]]]:
    """The networks of peers, with the exceptions of each."""
    blocks = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
    return [(ip_network(block["cidr"]), list(map(ip_network, block.get("except", ())))) for block in blocks]


def test_dns_questions_go_to_the_cluster_only() -> None:
    """Names in questions to a server of one's own carry data out."""
    policies = manifests("production").of_kind("NetworkPolicy")
    (rule,) = policies[RELEASE]["spec"]["egress"]
    assert {each["port"] for each in rule["ports"]} == {53}
    assert [peer["podSelector"]["matchLabels"] for peer in rule["to"] if "podSelector" in peer] == [
        {"k8s-app": "kube-dns"}
    ]
    assert all(network.num_addresses == 1 and network.is_link_local for network, _ in blocks_of(rule["to"]))


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.1", "100.100.100.200", "168.63.129.16", "169.254.169.254", "172.16.0.1", "192.0.0.192"),
        *("192.168.0.1", "fc00::1", "fe80::1", "64:ff9b::a9fe:a9fe"),
    ],
)
def test_the_internet_of_the_chart_has_no_private_address(address: str) -> None:
    """The same as the tools refuse (tenure/domain/outbound.py)."""
    assert not Networks().allow(ip_address(address))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for network, excepted in blocks_of(values["network"]["internet"]):
        ours = ip_address(address)
        assert ours.version != network.version or any(ours in one for one in excepted)


def test_the_chart_passes_trusted_proxies_on() -> None:
    documents = render({"gateway": {"http": {"trustedProxies": ["10.0.0.0/8", "fd00::/8"]}}})
    (template,) = [each for _, each in Manifests(documents).pods() if component(each) == "gateway"]
    assert environment(template)["TENURE_GATEWAY_HTTP_TRUSTED_PROXIES"] == "10.0.0.0/8,fd00::/8"


def test_pools_reach_their_peers_only() -> None:
    pools = {"plain": {}, "open": {"internet": True}, "closed": {"internet": False, "egress": TO_PORT_8000}}
    for has_runner, outside in ((True, set()), (False, {INTERNET})):
        documents = render({"models": {"enabled": has_runner}, "pools": pools})
        policies = [each for each in documents if each["kind"] == "NetworkPolicy"]
        labels = [each["spec"]["template"]["metadata"]["labels"] for each in documents if each["kind"] == "Deployment"]
        workers = {each["tenure/pool"]: Pod("worker", each, frozenset()) for each in labels if "tenure/pool" in each}
        assert leaving(policies, workers["plain"]) == outside
        assert leaving(policies, workers["open"]) == {INTERNET}
        assert leaving(policies, workers["closed"]) == {Outside(8000, ())}


def keys_of(documents: list[Document]) -> dict[str, set[str]]:
    """The variables of model keys of each deployment that has any."""
    found = {}
    for deployment in Manifests(documents).of_kind("Deployment").values():
        named = {variable for variable in environment(deployment["spec"]["template"]) if "_API_KEY" in variable}
        if named:
            found[deployment["metadata"]["name"]] = named
    return found


def test_callers_of_models_have_the_keys() -> None:
    """The model runners; without them the workers; and pools that ask for it, whose agents call models themselves."""
    key = {"ANTHROPIC_API_KEY_FILE"}
    assert keys_of(rendered("")) == {"tenure-models": key}
    assert keys_of(rendered("keda")) == {"tenure-models": key, "tenure-worker-batch": key}
    direct = render({**values_of(DIRECT), "models": {"enabled": False, "modelKeys": ["openai"]}})
    assert keys_of(direct) == {"tenure-worker-default": {"OPENAI_API_KEY_FILE"}}
    assert not [each for each in direct if each["metadata"]["name"] in {"tenure-models", "tenure-migrate-models"}]
    (worker,) = (pod for _, pod in Manifests(direct).pods() if component(pod) == "worker")
    assert "TENURE_WORKER_MODELS_ADDRESS" not in environment(worker)


def test_migrations_run_before_the_services() -> None:
    for service in ("checkpoint", "tools", "models"):
        name = f"migrate-{service}"
        job = manifests("").of_kind("Job")[f"{RELEASE}-{name}"]
        assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert container(job["spec"]["template"])["args"] == [service, "migrate"]
    jobs = [each for each in render({"migrate": {"hook": False}}) if each["kind"] == "Job"]
    assert [job["metadata"].get("annotations") for job in jobs] == [None, None, None]
    assert not [each for each in render({"migrate": {"enabled": False}}) if each["kind"] == "Job"]


def test_a_volume_of_one_node_is_released_first() -> None:
    strategies = {
        name: manifests(name).of_kind("Deployment")["tenure-tools"]["spec"]["strategy"] for name in ("", "minimal")
    }
    assert strategies["minimal"] == {"type": "Recreate"}
    assert strategies[""] == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    (claim,) = manifests("").of_kind("PersistentVolumeClaim").values()
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_traces_go_to_the_collector_of_the_values() -> None:
    for protocol in ("grpc", "http/protobuf"):
        values = {"endpoint": "http://collector:4318", "protocol": protocol}
        documents = [each for each in render({"traces": values}) if each["kind"] == "Deployment"]
        (template,) = [
            each["spec"]["template"] for each in documents if each["metadata"]["name"] == f"{RELEASE}-checkpoint"
        ]
        read = load(TraceSettings, environment(template), prefix="TENURE_CHECKPOINT_TRACES_")
        assert (read.endpoint, read.protocol) == (values["endpoint"], protocol)


def test_a_pool_gets_a_certificate_of_its_own(secrets: Path) -> None:
    """The command of the page, with the authority that made the other certificates."""
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (arguments,) = re.findall(r"^sudo \.venv/bin/tenure (keys certs create .+)$", page, re.MULTILINE)
    command = [sys.executable, "-m", "tenure.cli", *arguments.split()]
    subprocess.run(command, cwd=secrets.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    files = re.findall(r"--from-file=([\w.-]+)=(\S+)", page)
    paths = {name: secrets.parent / file for name, file in files}
    tls = MutualTlsSettings(
        certificate_file=paths["certificate.pem"],
        key_file=paths["certificate.key.pem"],
        ca_file=secrets / "public" / "ca.pem",
    )
    made = CertificateFiles(tls)
    assert made.read().identity(made.installation).name == "spiffe://tenure/worker/acme"
    assert paths["anthropic-api-key"].is_file()


def test_secrets_are_those_that_the_page_makes(secrets: Path) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (names,) = re.findall(r"^for name in (.+); do$", page, re.MULTILINE)
    mounted_names = {
        each["secret"]["secretName"].removeprefix(f"{RELEASE}-")
        for _, template in manifests("").pods()
        for each in template["spec"]["volumes"]
        if "secret" in each
    }
    assert set(names.split()) == mounted_names
    assert mounted_names <= {path.name for path in secrets.iterdir()}
