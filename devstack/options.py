"""The options of a stack, its files, its ports, and the environment of each service."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import uuid
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devstack.child_process import StackError
from devstack.clock import CLOCK_SCHEMA
from tenure.domain.access import DEFAULT_INSTALLATION, Role
from tenure.domain.budget import SIMULATED_MODEL_PREFIX
from tenure.domain.models import ANTHROPIC, OPENAI, vendor_of
from tenure.domain.task import DEFAULT_MODEL
from tenure.runtime.security.certificates import make_certificates
from tenure.runtime.security.secret_box import add_encryption_key
from tenure.runtime.security.signing import write_key_pair
from tenure.runtime.settings import FILE_SUFFIX
from tenure.serve import command_line

REPLICATED: Final = ("gateway", "coordinator", "checkpoint", "tools", "models")
"""The services that may have replicas. Workers have a separate option, and `models` needs `model_runner`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The options of a stack.

    `environment` adds variables by service ("worker", "worker-2", "tools", "*" …); services inherit nothing else.

    `replicas`: the number of replicas by service, 1 by default: `{"checkpoint": 2}` starts `checkpoint` and
    `checkpoint-2`, and their clients get both addresses.

    `scenarios`: a folder of further scenarios for the simulator. `scenario_files`: single scenarios; the first one is
    for tasks that name no model. `tools_config`: the tool service's config file with further tools.

    Without `postgres_dsn`, `etcd_endpoints` or `anthropic_api_key` the stack starts the embedded Postgres, the embedded
    etcd and the simulator.

    `metrics`: each service serves its metrics on a loopback port. The file of `Layout.metrics_targets` lists them for
    Prometheus.

    `http`: the gateways serve HTTP too, each on a port of its own.

    `model_runner`: the workers call models through the model runner, which gets the keys of the providers.

    `usual_ports`: the services get the ports that this folder had before, else the usual ones, as far as they are free.
    `port`: the gateway gets this port, and the other services those after it; with `usual_ports`.

    `forked`: the services are forks of one process that imports them once, which saves memory and time; only Linux.

    `movable_clock`: the clock of the ledger can be moved while the stack runs (clock.py), for tests of waiting.
    """

    data_dir: Path
    workers: int = 2
    replicas: Mapping[str, int] = field(default_factory=dict)
    slots: int = 16
    usual_ports: bool = False
    port: int = 0
    postgres_dsn: str = ""
    postgres_binaries: Path | None = None
    etcd_endpoints: str = ""
    etcd_binary: Path | None = None
    anthropic_api_key: str = ""
    anthropic_base_url: str = ""
    openai_api_key: str = ""
    openai_base_url: str = ""
    model: str = ""
    model_latency_ms: int = 0
    scenarios: Path | None = None
    scenario_files: tuple[Path, ...] = ()
    tools_config: Path | None = None
    log_format: str = "json"
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tls: bool = False
    metrics: bool = False
    movable_clock: bool = False
    http: bool = False
    model_runner: bool = False
    forked: bool = False

    def __post_init__(self) -> None:
        for kind, count in self.replicas.items():
            if kind not in REPLICATED or count < 1:
                raise ValueError(f"replicas: {kind}={count}; {', '.join(REPLICATED)} have at least one each")

    def names_of(self, kind: str) -> list[str]:
        """Returns the names of a service's replicas (`tools`, `tools-2`, …) or of the workers (`worker-1`, …)."""
        if kind == "models" and not self.model_runner:
            return []
        if kind == "worker":
            return [f"worker-{number}" for number in range(1, self.workers + 1)]
        return [kind, *(f"{kind}-{number}" for number in range(2, self.replicas.get(kind, 1) + 1))]

    @property
    def default_model(self) -> str:
        """The default model of the checkpoint service and of the workers, for tasks that name none."""
        if self.model or not self.scenario_files:
            return self.model or DEFAULT_MODEL
        return f"{SIMULATED_MODEL_PREFIX}{self.scenario_files[0].stem}"

    @property
    def real_vendors(self) -> tuple[str, ...]:
        """The vendors of which a key or an endpoint is given. A prompt goes to no other one."""
        given = {
            ANTHROPIC: self.anthropic_api_key or self.anthropic_base_url,
            OPENAI: self.openai_api_key or self.openai_base_url,
        }
        return tuple(vendor for vendor, value in given.items() if value)

    @property
    def model_is_simulated(self) -> bool:
        """Whether no provider is given, neither Anthropic nor OpenAI."""
        return not self.real_vendors

    @property
    def default_model_has_provider(self) -> bool:
        """Whether a task that names no model can be answered."""
        return self.model_is_simulated or vendor_of(self.default_model)[0] in self.real_vendors


# Where the stack keeps its files.


class Layout:
    """The paths of a stack's files. They are all in one folder, which later starts use again.

    `records`: the folder of append_record's files; for Tenure these are effects in the outside world. `metrics_targets`
    lists the services' metrics, for `file_sd_configs` of Prometheus. `model_log`: the simulator's bill, a JSON object a
    line. `certificates`: those of all processes and of `operator`, with `tls`. `secrets`: those of the services, while
    the stack runs.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.etcd, self.postgres, self.logs = data_dir / "etcd", data_dir / "postgres", data_dir / "logs"
        self.workspaces, self.records = data_dir / "workspaces", data_dir / "records"
        self.metrics_targets, self.model_log = data_dir / "prometheus-targets.json", data_dir / "model-calls.jsonl"
        self.certificates, self.secrets = data_dir / "certificates", data_dir / "secrets"
        self.signing_key, self.verifying_keys = data_dir / "keys" / "signing.json", data_dir / "keys" / "verifying.json"
        self.encryption_keys = data_dir / "keys" / "encryption.json"

    def files(self) -> list[Path]:
        """Returns all files and folders that a stack makes in its data folder, except those of data_dir.py."""
        folders = [self.etcd, self.postgres, self.logs, self.workspaces, self.records, self.certificates, self.secrets]
        return [*folders, self.signing_key.parent, self.metrics_targets, self.model_log]

    def secret_file(self, name: str, secret: str) -> Path:
        """Writes a secret of a service, which only the owner of the stack may read, and returns the file."""
        path = self.secrets / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w", encoding="utf-8") as file:
            file.write(secret)
        return path

    def create(self) -> None:
        """Creates the data folder, for the owner of the stack only.

        Root's may be entered: the account that runs the embedded Postgres then needs no capability to reach its part.
        """
        self.data_dir.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)

    def prepare(self) -> None:
        """Creates the folders and, at the first start, the signing key."""
        self.create()
        for folder in (self.logs, self.workspaces, self.records, self.signing_key.parent):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)  # also a folder that exists and is readable for every account
        if not self.signing_key.exists():
            write_key_pair(self.signing_key, self.verifying_keys, key_id=uuid.uuid4().hex[:8])
        if not self.encryption_keys.exists():
            add_encryption_key(self.encryption_keys, uuid.uuid4().hex[:8])

    def make_certificates(self, options: StackOptions) -> None:
        """Makes a certificate for each process of the stack and for `operator`, anew at each start."""
        processes = [(role, name) for role in Role for name in options.names_of(role.lower())]
        make_certificates(
            self.certificates, processes, installation=DEFAULT_INSTALLATION, days=365, hosts=["localhost", HOST]
        )


# The ports of the stack's services.

HOST: Final = "127.0.0.1"
USUAL_PORTS: Final = {
    "gateway": 8470,
    "coordinator": 8471,
    "checkpoint": 8472,
    "tools": 8473,
    "worker-1": 8474,
    "worker-2": 8475,
    "simulator": 8476,
    "models": 8477,
    "gateway metrics": 9470,
    "coordinator metrics": 9471,
    "checkpoint metrics": 9472,
    "tools metrics": 9473,
    "worker-1 metrics": 9474,
    "worker-2 metrics": 9475,
    "models metrics": 9476,
    "gateway-http": 8480,
}
HTTP_LISTEN: Final = "TENURE_GATEWAY_HTTP_LISTEN"
PUBLIC_URL: Final = "TENURE_CHECKPOINT_ANSWER_LINK_PUBLIC_URL"
# Below the range of ports for outgoing connections of Linux (from 32768) and macOS (from 49152): sooner or later such a
# connection would have the port of a service that is being restarted.
FREE_PORTS: Final = range(20_000, 32_000)
TRIES: Final = 200


def choose_address(name: str, *, usual: bool, avoid: Collection[str] = ()) -> str:
    """Returns a `host:port` without a listener: the usual port if `usual` and it is free, else a random one.

    Raises OSError if all tried ports are taken.
    """
    for port in _candidates(name, usual=usual):
        address = f"{HOST}:{port}"
        if address not in avoid and (holder := _hold(port)) is not None:
            holder.close()
            return address
    raise _all_taken()


class HeldAddresses:
    """The addresses of one stack. No other stack on this machine chooses them before `close`.

    A service listens only seconds after its port was chosen, and does not listen during a restart. Without these holds,
    two stacks that start at the same time would choose the same ports, and the services of one stack would talk to
    those of the other.
    """

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def choose(self, name: str, *, usual: bool, before: Sequence[int] = ()) -> str:
        """Returns an address as `choose_address`, and never the same one twice. Raises OSError.

        `before`: ports to try before these.
        """
        for port in (*before, *_candidates(name, usual=usual)):
            if (holder := _hold(port)) is not None:
                address = f"{HOST}:{port}"
                self._held[address] = holder
                return address
        raise _all_taken()

    def release(self, address: str) -> None:
        """Releases one address for other stacks, if it is held."""
        if (holder := self._held.pop(address, None)) is not None:
            holder.close()

    def close(self) -> None:
        """Releases the addresses for other stacks."""
        for address in list(self._held):
            self.release(address)


def _candidates(name: str, *, usual: bool) -> Iterator[int]:
    if usual and name in USUAL_PORTS:
        yield USUAL_PORTS[name]
    yield from random.sample(FREE_PORTS, TRIES)


def _all_taken() -> OSError:
    return OSError(f"no free port among {TRIES} of {FREE_PORTS.start} to {FREE_PORTS.stop} on {HOST}")


def _hold(port: int) -> socket.socket | None:
    """Holds a port. Returns None if another stack holds it or a process listens on it.

    The hold is a socket on the UDP port of the same number, which no service uses: it is exclusive, ends with the
    process at the latest, and leaves the TCP port to the service.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return None
    if not _is_free(port):
        holder.close()
        return None
    return holder


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


# The environment of each service.

CALLED_BY: Final[Mapping[str, Sequence[str]]] = {
    "gateway": ("checkpoint", "coordinator", "tools"),
    "coordinator": ("checkpoint", "tools"),
    "worker": ("coordinator", "checkpoint", "tools", "models"),
    "models": ("checkpoint",),
}
"""The services that each service calls. It has the setting address_variable for each of them."""


def address_variable(service: str, called: str) -> str:
    """Returns the variable with the addresses of a service that another one calls."""
    return f"TENURE_{service.upper()}_{called.upper()}_ADDRESS"


FIRST_UID: Final = 61_000
UIDS_APART: Final = 1024
"""Replicas on one host must not share the uids of their sandboxes. This is the largest number of slots of a replica."""


SECRETS: Final = (
    "TENURE_CHECKPOINT_POSTGRES_DSN",
    "TENURE_CHECKPOINT_STANDBY_DSN",
    "TENURE_CHECKPOINT_SMTP_PASSWORD",
    "TENURE_TOOLS_POSTGRES_DSN",
    "TENURE_MODELS_POSTGRES_DSN",
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
)
"""Variables that a service gets as files: other processes of the account can read its environment."""
NO_KEY: Final = "none"


@dataclass(slots=True)
class StackAddresses:
    """The addresses of the parts. Each is set when its part has started."""

    postgres_dsn: str = ""
    etcd_endpoints: str = ""
    model_url: str = ""
    search_url: str = ""
    checkpoint: str = ""
    tools: str = ""
    coordinator: str = ""
    models: str = ""

    def called_by(self, service: str) -> dict[str, str]:
        """Returns the variables with the addresses of the started services that a service calls."""
        called = {name: str(getattr(self, name)) for name in CALLED_BY.get(service, ())}
        return {address_variable(service, name): address for name, address in called.items() if address}


def environment_of(
    kind: str, name: str, address: str, options: StackOptions, layout: Layout, addresses: StackAddresses
) -> dict[str, str]:
    """Returns the whole environment of one service. Variables of the options override those of the stack."""
    own = {f"TENURE_{kind.upper()}_LISTEN": address, "TENURE_LOG_FORMAT": options.log_format}
    added: dict[str, str] = {}
    for key in ("*", kind, name):
        added.update(options.environment.get(key, {}))
    if options.tls:
        own |= {
            "TENURE_TLS_CERTIFICATE_FILE": str(layout.certificates / f"{name}.pem"),
            "TENURE_TLS_KEY_FILE": str(layout.certificates / f"{name}.key.pem"),
            "TENURE_TLS_CA_FILE": str(layout.certificates / "ca.pem"),
        }
    plain = {**own, **addresses.called_by(kind), **_OF_KIND[kind](name, options, layout, addresses), **added}
    secrets = {variable: plain.pop(variable) for variable in SECRETS if plain.get(variable, NO_KEY) != NO_KEY}
    files = {
        f"{variable}{FILE_SUFFIX}": str(layout.secret_file(f"{name}.{variable}", secret))
        for variable, secret in secrets.items()
    }
    return {**plain, **files}


def _checkpoint(_name: str, options: StackOptions, layout: Layout, addresses: StackAddresses) -> dict[str, str]:
    return {
        "TENURE_CHECKPOINT_POSTGRES_DSN": addresses.postgres_dsn,
        "TENURE_CHECKPOINT_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
        "TENURE_CHECKPOINT_ENCRYPTION_KEYS_FILE": str(layout.encryption_keys),
        "TENURE_CHECKPOINT_MIGRATE": "auto",
        "TENURE_CHECKPOINT_DEFAULT_MODEL": options.default_model,
        "TENURE_CHECKPOINT_CLOCK_SCHEMA": CLOCK_SCHEMA if options.movable_clock else "",
        "TENURE_CHECKPOINT_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128",
    }


def _tools(name: str, options: StackOptions, layout: Layout, addresses: StackAddresses) -> dict[str, str]:
    config = {"TENURE_TOOLS_CONFIG_FILE": str(options.tools_config.absolute())} if options.tools_config else {}
    return {
        **config,
        "TENURE_TOOLS_POSTGRES_DSN": addresses.postgres_dsn,
        "TENURE_TOOLS_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
        "TENURE_TOOLS_MIGRATE": "auto",
        "TENURE_TOOLS_WORKSPACE_ROOT": str(layout.workspaces),
        "TENURE_TOOLS_RECORDS_DIR": str(layout.records),
        "TENURE_TOOLS_SEARCH_URL": addresses.search_url,
        "TENURE_TOOLS_SANDBOX_FIRST_UID": str(FIRST_UID + UIDS_APART * options.names_of("tools").index(name)),
    }


def _coordinator(_name: str, _options: StackOptions, layout: Layout, addresses: StackAddresses) -> dict[str, str]:
    return {
        "TENURE_COORDINATOR_ETCD_ENDPOINTS": addresses.etcd_endpoints,
        "TENURE_COORDINATOR_SIGNING_KEY_FILE": str(layout.signing_key),
        "TENURE_COORDINATOR_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
    }


def _gateway(_name: str, _options: StackOptions, layout: Layout, _addresses: StackAddresses) -> dict[str, str]:
    return {"TENURE_GATEWAY_STACK_FOLDER": str(layout.data_dir)}


def _worker(name: str, options: StackOptions, _layout: Layout, addresses: StackAddresses) -> dict[str, str]:
    environment = {
        "TENURE_WORKER_ID": name,
        "TENURE_WORKER_MODEL": options.default_model,
        "TENURE_WORKER_SLOTS": str(options.slots),
    }
    return environment if options.model_runner else {**environment, **_providers(options, addresses)}


def _models(_name: str, options: StackOptions, layout: Layout, addresses: StackAddresses) -> dict[str, str]:
    return {
        "TENURE_MODELS_POSTGRES_DSN": addresses.postgres_dsn,
        "TENURE_MODELS_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
        "TENURE_MODELS_MIGRATE": "auto",
        "TENURE_MODELS_DRAIN_SECONDS": "5",  # a person who stops the stack does not want to wait for long answers
        **_providers(options, addresses),
    }


def _providers(options: StackOptions, addresses: StackAddresses) -> dict[str, str]:
    """Returns the variables of the model providers."""
    simulated_openai = f"{addresses.model_url}/v1" if options.model_is_simulated and addresses.model_url else ""
    endpoints = {
        # The client library needs a key even if the server does not: the simulator, or a proxy that adds the key.
        "ANTHROPIC_API_KEY": options.anthropic_api_key or (NO_KEY if addresses.model_url else ""),
        "ANTHROPIC_BASE_URL": addresses.model_url,
        "OPENAI_API_KEY": options.openai_api_key,
        "OPENAI_BASE_URL": options.openai_base_url or simulated_openai,
    }
    return {name: value for name, value in endpoints.items() if value}


_OF_KIND: Final[dict[str, Callable[[str, StackOptions, Layout, StackAddresses], dict[str, str]]]] = {
    "checkpoint": _checkpoint,
    "tools": _tools,
    "coordinator": _coordinator,
    "gateway": _gateway,
    "worker": _worker,
    "models": _models,
}


# The config file of further tools, which is checked before the stack starts.

_SECONDS: Final = 120.0


async def check_tools_file(environment: Mapping[str, str], folder: Path) -> None:
    """Lets the tool service check its config file, with its environment. Raises StackError with all problems."""
    process = await asyncio.create_subprocess_exec(
        *command_line("tools", "config"),
        env=dict(environment),
        cwd=folder,
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is for the stack, not for this process
    )
    try:
        async with asyncio.timeout(_SECONDS):
            _, problems = await process.communicate()
    except TimeoutError:
        raise StackError(f"the tools file could not be checked within {_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise StackError(f"nothing is started: {problems.decode(errors='replace').strip()}")
