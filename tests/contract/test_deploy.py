"""What deploy/ says is what the services understand, and it is secure as it is."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import prepare
from tenure.runtime.security.certificate_files import CertificateFiles
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import load
from tenure.serve import command_line
from tests.support.compose_file import DEPLOY, ROOT, SERVICES, NothingReplaced, compose_file, compose_services

MIGRATIONS = {"migrate-checkpoint": "checkpoint", "migrate-tools": "tools", "migrate-models": "models"}
RUN_BY_UP = {*SERVICES, *MIGRATIONS, "postgres", "etcd"}
NETWORKS = {
    "gateway": {"front", "services"},
    "coordinator": {"services", "claims"},
    "checkpoint": {"services", "database"},
    "tools": {"services", "database", "egress"},
    "models": {"services", "database", "egress"},
    "worker": {"services"},
    "etcd": {"claims"},
    "postgres": {"database"},
    **{name: {"database"} for name in MIGRATIONS},
}
USERS = {**dict.fromkeys(RUN_BY_UP, "10001:10001"), "postgres": "999:999", "etcd": "0:0", "setup": "0:0"}
CONFINED = ["no-new-privileges:true"]
SANDBOXING = [*CONFINED, "seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"]
CLOSING_SECONDS = 30
"""A process closes within this time after its drain: `tenure.runtime.process.run`."""


def settings_type(service: str) -> type[Any]:
    """A service's Settings, wherever its main.py has them from."""
    value: type[Any] = getattr(importlib.import_module(f"services.{service}.main"), f"{service.capitalize()}Settings")
    return value


def environment(service: str, secrets: Path) -> dict[str, str]:
    """The variables of a container, with its directories of secrets where they are on this machine."""
    chosen = compose_services()[service]
    mounts = dict(volume.split(":")[:2] for volume in chosen["volumes"] if volume.startswith("./secrets/"))
    variables: dict[str, str] = {}
    for name, value in chosen["environment"].items():
        for source, target in mounts.items():
            value = value.replace(f"{target}/", f"{secrets / Path(source).name}/")  # noqa: PLW2901
        variables[name] = value
    return variables


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the setup makes."""
    folder = tmp_path_factory.mktemp("deploy") / "secrets"
    run_setup("create", folder)
    return folder


def run_setup(command: str, folder: Path, model_key: str = "sk-planted") -> str:
    """As the container `setup` runs it, but the files stay ours."""
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "prepare.py"), command, str(folder), "--keep-owner"],
        input=model_key,
        capture_output=True,
        text=True,
        check=True,
    )
    assert model_key not in done.stdout + done.stderr
    return done.stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_understands_its_environment(service: str, secrets: Path) -> None:
    """All files are there, and nothing that a service reaches is without TLS."""
    settings = load(settings_type(service), environment(service, secrets), prefix=f"TENURE_{service.upper()}_")
    assert not settings.common.allow_insecure_network
    files = CertificateFiles(settings.common.tls)
    assert files.read().identity(files.installation).name == f"spiffe://tenure/{service}/{service}"


@pytest.mark.parametrize(("name", "kind"), MIGRATIONS.items())
def test_each_migration_understands_its_environment(name: str, kind: str, secrets: Path) -> None:
    load(settings_type(kind), environment(name, secrets), prefix=f"TENURE_{kind.upper()}_")


def test_the_ledger_and_the_workers_have_one_default_model() -> None:
    ledger, worker = (compose_services()[service]["environment"] for service in ("checkpoint", "worker"))
    assert ledger["TENURE_CHECKPOINT_DEFAULT_MODEL"] == worker["TENURE_WORKER_MODEL"]


def test_etcd_is_a_safe_release() -> None:
    version = tuple(int(part) for part in compose_services()["etcd"]["image"].rpartition(":v")[2].split("."))
    assert version >= (3, 5, 33)
    assert version[:2] != (3, 6) or version >= (3, 6, 14)


def test_no_key_replaces_a_merged_value() -> None:
    compose_file()
    with pytest.raises(yaml.YAMLError, match="security_opt replaces a merged value"):
        yaml.load("a: &a {security_opt: [x]}\nb: {<<: *a, security_opt: [y]}", NothingReplaced)


def test_each_container_states_its_confinement() -> None:
    services = compose_services()
    assert set(services) == {*RUN_BY_UP, "setup"}
    for name, service in services.items():
        assert service["user"] == USERS[name], name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == (SANDBOXING if name == "tools" else CONFINED), name
        assert not {"privileged", "devices", "pid", "ipc", "volumes_from", "userns_mode"} & set(service), name
        assert ("cap_add" in service) == (name == "setup"), name
        if name != "setup":
            assert {"mem_limit", "pids_limit", "restart"} <= set(service), name


def test_each_container_is_in_its_networks_only() -> None:
    services, networks = compose_services(), compose_file()["networks"]
    assert {name: set(service["networks"]) for name, service in services.items() if name != "setup"} == NETWORKS
    assert services["setup"]["network_mode"] == "none"
    assert {name for name, network in networks.items() if not (network or {}).get("internal")} == {"front", "egress"}
    members = {network: {name for name, of in NETWORKS.items() if network in of} for network in networks}
    assert members["claims"] == {"coordinator", "etcd"}
    assert members["database"] - set(MIGRATIONS) == {"checkpoint", "tools", "models", "postgres"}


def test_only_the_gateway_is_published() -> None:
    published = {name: service["ports"] for name, service in compose_services().items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:8470:8470", "127.0.0.1:8480:8480"]}


def test_no_secret_is_in_an_environment_or_a_command() -> None:
    for name, service in compose_services().items():
        for variable, value in service.get("environment", {}).items():
            assert variable.endswith("_FILE") or not re.search("PASSWORD|_KEY|DSN|SECRET|TOKEN", variable), name
            assert variable != "TENURE_ALLOW_INSECURE_NETWORK"
            assert "://" not in value or value.startswith("https://"), (name, variable)
        assert not re.search("password|secret=|://.*@", " ".join(service.get("command", []))), name
    assert "POSTGRES_PASSWORD}" not in (DEPLOY / "compose.yaml").read_text()


def test_each_container_gets_its_own_secrets_only() -> None:
    for name, service in compose_services().items():
        mounted = {volume for volume in service.get("volumes", []) if volume.startswith("./secrets")}
        own = f"./secrets/{name}:/run/tenure/own:ro"
        public = "./secrets/public:/run/tenure/public:ro"
        stores = {"postgres", "etcd"}
        expected = {"./secrets:/secrets"} if name == "setup" else {own} if name in stores else {own, public}
        assert mounted == expected, name


def test_only_the_model_runner_has_keys_of_models(secrets: Path) -> None:
    with_keys = {path.parent.name for path in secrets.rglob("*-api-key")}
    assert with_keys == {"models"}
    named = {
        name
        for name, service in compose_services().items()
        if any(variable.startswith(("ANTHROPIC_", "OPENAI_")) for variable in service.get("environment", {}))
    }
    assert named == {"models"}
    assert compose_services()["worker"]["environment"]["TENURE_WORKER_MODELS_ADDRESS"] == "models:8477"


def test_a_stop_gives_time_to_drain() -> None:
    for name in SERVICES:
        fields = settings_type(name).__dataclass_fields__
        drain_seconds = fields["drain_seconds"].default if "drain_seconds" in fields else 0
        grace = compose_services()[name]["stop_grace_period"]
        assert int(grace.removesuffix("s")) > drain_seconds + CLOSING_SECONDS, name


def test_each_service_has_a_health_check() -> None:
    for name in SERVICES:
        check = compose_services()[name]["healthcheck"]
        assert check["test"] == ["CMD", "python", *command_line(name, "health")[1:]]
        assert set(check) == {"test", "interval", "timeout", "retries", "start_period", "start_interval"}


def test_the_image_runs_as_the_user_that_gets_the_secrets() -> None:
    users = re.findall(r"--uid (\d+)|^USER (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert {uid for pair in users for uid in pair if uid} == {str(prepare.SERVICE_UID)}
    for name, uid in prepare.OWNERS.items():
        if name in RUN_BY_UP:
            assert USERS[name] == f"{uid}:{uid}"


def test_no_secret_goes_into_an_image_or_a_commit() -> None:
    for file in (".dockerignore", ".gitignore"):
        assert "deploy/secrets" in (ROOT / file).read_text().replace("secrets/", "secrets").splitlines()


def test_images_can_be_pinned_by_digest() -> None:
    text = (DEPLOY / "compose.yaml").read_text() + (DEPLOY / "Dockerfile").read_text()
    assert len(re.findall(r"^FROM \$\{PYTHON_IMAGE\}", text, re.MULTILINE)) == 2
    page = (ROOT / "docs" / "operations.md").read_text()
    for variable, image in (("PYTHON", "python:3.12-slim-bookworm"), ("POSTGRES", "postgres:18"), ("ETCD", "etcd:v")):
        assert re.search(rf"TENURE_{variable}_IMAGE:-[^}}]*{image}", text)
        (named,) = re.findall(rf"TENURE_{variable}_IMAGE:-([^}}]*)", text)[:1]
        assert f"{variable}={named}" in page


def test_the_setup_makes_secrets_for_their_owner_only(secrets: Path) -> None:
    assert {path.name for path in secrets.iterdir()} == set(prepare.OWNERS)
    for path in secrets.rglob("*"):
        relative, mode = path.relative_to(secrets), path.stat().st_mode & 0o777
        is_public = path.resolve().parent == secrets / "public"
        if path.is_dir():
            assert mode == (0o755 if path.name == "public" else 0o700), relative
        elif path.name.endswith(".key.pem") or not (is_public or path.suffix == ".pem"):
            assert mode in {0o400, 0o600}, relative
    in_public = contents(secrets / "public")
    assert set(in_public) == {"ca.pem", "stores-ca.pem", "verifying.json"}
    assert not any(b"PRIVATE" in content for content in in_public.values())
    assert (secrets / "models" / "anthropic-api-key").read_text() == "sk-planted"
    passwords = {(secrets / "postgres" / name).read_text() for name in (*prepare.DATABASE_ROLES, "superuser")}
    assert len(passwords) == 7


def test_the_setup_replaces_nothing_and_completes(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    run_setup("create", folder)
    before = contents(folder)
    (folder / "tools" / "dsn").unlink()
    assert "1 files made" in run_setup("create", folder, "another")
    assert contents(folder) == before


def test_a_renewal_replaces_certificates_only(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    run_setup("create", folder)
    before = contents(folder)
    run_setup("renew", folder)
    after = contents(folder)
    changed = {name for name in before if before[name] != after[name]}
    issued = {"certificate", "etcd", "etcd-client", "postgres"}
    assert changed == {name for name in before if Path(name).name.partition(".")[0] in issued}
    assert len(changed) == 2 * 9
    own = folder / "gateway"
    CertificateFiles(
        MutualTlsSettings(
            certificate_file=own / "certificate.pem",
            key_file=own / "certificate.key.pem",
            ca_file=folder / "public" / "ca.pem",
        )
    )


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker client")
def test_docker_understands_the_file() -> None:
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode:
        pytest.skip("no docker compose")
    command = ["docker", "compose", "--file", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
