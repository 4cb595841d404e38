"""What the stack is asked to be."""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import uuid
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devstack.child_process import StackError
from tenure.domain.simulation import SIMULATED_MODEL_PREFIX
from tenure.domain.task import DEFAULT_MODEL
from tenure.runtime.signing import write_key_pair

REPLICATED: Final = ("gateway", "coordinator", "checkpoint", "tools")
"""The services of which there may be several; workers have an option of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """`environment` adds variables by service ("worker", "worker-2", "tools", "*" …); nothing else is inherited.

    `replicas` is how many there are of a service, one of each where it says nothing: `{"checkpoint": 2}` starts
    `checkpoint` and `checkpoint-2`, and everybody who dials checkpoints is told both.

    `scenarios` is a folder of scenarios for the simulator, beside its own; `scenario_files` are single ones, the first
    for tasks that name no model. `tools_config` names the tool service's further tools.

    Without a DSN, endpoints or a key of your own the embedded Postgres, the embedded etcd and the simulator are used.
    """

    data_dir: Path
    workers: int = 2
    replicas: Mapping[str, int] = field(default_factory=dict)
    slots: int = 16
    usual_ports: bool = False
    postgres_dsn: str = ""
    postgres_binaries: Path | None = None
    etcd_endpoints: str = ""
    etcd_binary: Path | None = None
    anthropic_api_key: str = ""
    anthropic_base_url: str = ""
    model: str = ""
    model_latency_ms: int = 0
    scenarios: Path | None = None
    scenario_files: tuple[Path, ...] = ()
    tools_config: Path | None = None
    log_format: str = "json"
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, count in self.replicas.items():
            if kind not in REPLICATED or count < 1:
                raise ValueError(f"replicas: {kind}={count}; at least one of {', '.join(REPLICATED)}")

    def names_of(self, kind: str) -> list[str]:
        """What the replicas of a service are called, `tools`, `tools-2`, …; and the workers, `worker-1` and on."""
        if kind == "worker":
            return [f"worker-{number}" for number in range(1, self.workers + 1)]
        return [kind, *(f"{kind}-{number}" for number in range(2, self.replicas.get(kind, 1) + 1))]

    @property
    def default_model(self) -> str:
        """The model of tasks that name none, of the ledger and of the workers alike."""
        if self.model or not self.scenario_files:
            return self.model or DEFAULT_MODEL
        return f"{SIMULATED_MODEL_PREFIX}{self.scenario_files[0].stem}"

    @property
    def model_is_simulated(self) -> bool:
        return not (self.anthropic_api_key or self.anthropic_base_url)


# Where the stack keeps its files.


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything under one folder, which a second start finds again."""

    data_dir: Path

    @property
    def etcd(self) -> Path:
        return self.data_dir / "etcd"

    @property
    def postgres(self) -> Path:
        return self.data_dir / "postgres"

    @property
    def logs(self) -> Path:
        return self.data_dir / "logs"

    @property
    def workspaces(self) -> Path:
        return self.data_dir / "workspaces"

    @property
    def records(self) -> Path:
        """Where append_record writes: the outside, as far as Tenure is concerned."""
        return self.data_dir / "records"

    @property
    def model_log(self) -> Path:
        """What the simulator billed, one JSON object a line."""
        return self.data_dir / "model-calls.jsonl"

    @property
    def signing_key(self) -> Path:
        return self.data_dir / "keys" / "signing.json"

    @property
    def verifying_keys(self) -> Path:
        return self.data_dir / "keys" / "verifying.json"

    def prepare(self) -> None:
        """Makes the folders, and the key of the first start."""
        for folder in (self.data_dir, self.logs, self.workspaces, self.records, self.signing_key.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.signing_key.parent.chmod(0o700)
        if not self.signing_key.exists():
            write_key_pair(self.signing_key, self.verifying_keys, key_id=uuid.uuid4().hex[:8])


# Which ports the stack's services get.

HOST: Final = "127.0.0.1"
USUAL_PORTS: Final = {
    "gateway": 8470,
    "coordinator": 8471,
    "checkpoint": 8472,
    "tools": 8473,
    "worker-1": 8474,
    "worker-2": 8475,
    "simulator": 8476,
}
# Below the range that Linux (32768) and macOS (49152) take for outgoing connections: one of those would sooner or later
# sit on the port of a service that is being started again.
FREE_PORTS: Final = range(20_000, 32_000)
TRIES: Final = 200


def choose_address(name: str, *, usual: bool, avoid: Collection[str] = ()) -> str:
    """host:port that nobody listens on now: the usual port when it is wanted and free, else any. OSError: all taken."""
    for port in _candidates(name, usual=usual):
        address = f"{HOST}:{port}"
        if address not in avoid and (held := _hold(port)) is not None:
            held.close()
            return address
    raise _all_taken()


class HeldAddresses:
    """The addresses of one stack: no other stack on this machine chooses them before `close`.

    A service listens seconds after its port was chosen, and not while it is started again. Without a hold two stacks
    that start at once choose the same ports, and the services of one then talk to those of the other.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def choose(self, name: str, *, usual: bool) -> str:
        """As `choose_address`, never the same address twice."""
        for port in _candidates(name, usual=usual):
            if (held := _hold(port)) is not None:
                self._held.append(held)
                return f"{HOST}:{port}"
        raise _all_taken()

    def close(self) -> None:
        """Others may choose the addresses again."""
        for held in self._held:
            held.close()
        self._held.clear()


def _candidates(name: str, *, usual: bool) -> Iterator[int]:
    if usual and name in USUAL_PORTS:
        yield USUAL_PORTS[name]
    yield from random.sample(FREE_PORTS, TRIES)


def _all_taken() -> OSError:
    return OSError(f"no free port among {TRIES} of {FREE_PORTS.start} to {FREE_PORTS.stop} on {HOST}")


def _hold(port: int) -> socket.socket | None:
    """None when another stack holds the port or somebody listens on it.

    The hold is the UDP port of the same number, which no service uses: it is exclusive, ends with the process at the
    latest, and leaves the TCP port to the service.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        held.bind((HOST, port))
    except OSError:
        held.close()
        return None
    if not _nobody_listens(port):
        held.close()
        return None
    return held


def _nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: a connection that lingers is no owner.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


# What each service of the stack finds in its environment.

FIRST_UID: Final = 61_000
UIDS_APART: Final = 1024
"""Replicas on one host must not share their sandboxes' uids; this is the most slots that one can have."""


@dataclass(slots=True)
class StackAddresses:
    """Where things are, filled in as they come up."""

    postgres_dsn: str = ""
    etcd_endpoints: str = ""
    model_url: str = ""
    search_url: str = ""
    checkpoint: str = ""
    tools: str = ""
    coordinator: str = ""


def environment_of(
    kind: str, name: str, address: str, options: StackOptions, layout: Layout, places: StackAddresses
) -> dict[str, str]:
    """The whole environment of one service, what the options add last."""
    own = {f"TENURE_{kind.upper()}_LISTEN": address, "TENURE_LOG_FORMAT": options.log_format}
    added: dict[str, str] = {}
    for key in ("*", kind, name):
        added.update(options.environment.get(key, {}))
    return {**own, **_OF_KIND[kind](name, options, layout, places), **added}


def _checkpoint(_name: str, options: StackOptions, layout: Layout, places: StackAddresses) -> dict[str, str]:
    return {
        "TENURE_CHECKPOINT_POSTGRES_DSN": places.postgres_dsn,
        "TENURE_CHECKPOINT_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
        "TENURE_CHECKPOINT_MIGRATE": "auto",
        "TENURE_CHECKPOINT_DEFAULT_MODEL": options.default_model,
        "TENURE_CHECKPOINT_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128",
    }


def _tools(name: str, options: StackOptions, layout: Layout, places: StackAddresses) -> dict[str, str]:
    config = {"TENURE_TOOLS_CONFIG_FILE": str(options.tools_config.absolute())} if options.tools_config else {}
    return {
        **config,
        "TENURE_TOOLS_POSTGRES_DSN": places.postgres_dsn,
        "TENURE_TOOLS_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
        "TENURE_TOOLS_MIGRATE": "auto",
        "TENURE_TOOLS_WORKSPACE_ROOT": str(layout.workspaces),
        "TENURE_TOOLS_RECORDS_DIR": str(layout.records),
        "TENURE_TOOLS_SEARCH_URL": places.search_url,
        "TENURE_TOOLS_SANDBOX_FIRST_UID": str(FIRST_UID + UIDS_APART * options.names_of("tools").index(name)),
    }


def _coordinator(_name: str, _options: StackOptions, layout: Layout, places: StackAddresses) -> dict[str, str]:
    return {
        "TENURE_COORDINATOR_ETCD_ENDPOINTS": places.etcd_endpoints,
        "TENURE_COORDINATOR_CHECKPOINT_ADDRESS": places.checkpoint,
        "TENURE_COORDINATOR_TOOLS_ADDRESS": places.tools,
        "TENURE_COORDINATOR_SIGNING_KEY_FILE": str(layout.signing_key),
        "TENURE_COORDINATOR_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
    }


def _gateway(_name: str, _options: StackOptions, _layout: Layout, places: StackAddresses) -> dict[str, str]:
    return {
        "TENURE_GATEWAY_CHECKPOINT_ADDRESS": places.checkpoint,
        "TENURE_GATEWAY_COORDINATOR_ADDRESS": places.coordinator,
        "TENURE_GATEWAY_TOOLS_ADDRESS": places.tools,
    }


def _worker(name: str, options: StackOptions, _layout: Layout, places: StackAddresses) -> dict[str, str]:
    environment = {
        "TENURE_WORKER_ID": name,
        "TENURE_WORKER_COORDINATOR_ADDRESSES": places.coordinator,
        "TENURE_WORKER_CHECKPOINT_ADDRESS": places.checkpoint,
        "TENURE_WORKER_TOOLS_ADDRESS": places.tools,
        "TENURE_WORKER_MODEL": options.default_model,
        "TENURE_WORKER_SLOTS": str(options.slots),
        # The client wants a key also where nobody asks for one: at the simulator, behind a proxy that adds it.
        "ANTHROPIC_API_KEY": options.anthropic_api_key or "none",
    }
    return {**environment, **({"ANTHROPIC_BASE_URL": places.model_url} if places.model_url else {})}


_OF_KIND: Final[dict[str, Callable[[str, StackOptions, Layout, StackAddresses], dict[str, str]]]] = {
    "checkpoint": _checkpoint,
    "tools": _tools,
    "coordinator": _coordinator,
    "gateway": _gateway,
    "worker": _worker,
}


# The file of further tools, looked at before anything is started because of it.

_SECONDS: Final = 120.0


async def check_tools_file(environment: Mapping[str, str], folder: Path) -> None:
    """With the tool service's environment, by the service itself. Raises StackError with all that is wrong with it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "services.tools", "config"),
        env=dict(environment),
        cwd=folder,
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        start_new_session=True,  # Ctrl-C in the terminal is for us
    )
    try:
        async with asyncio.timeout(_SECONDS):
            _, message = await process.communicate()
    except TimeoutError:
        raise StackError(f"the tools could not be looked at within {_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise StackError(f"nothing is started: {message.decode(errors='replace').strip()}")
