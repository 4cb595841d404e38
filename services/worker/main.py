"""Starts the worker process.

A worker is stateless: if it is lost, another worker resumes its tasks from the last commit.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from services.worker.agents import SILENCE_SECONDS as REGISTRATION_SILENCE_SECONDS
from services.worker.agents import WorkerAgentRegistration, definitions_of, digests_of
from services.worker.control.functions import NO_FUNCTIONS, load_functions
from services.worker.dependencies import Dependencies, ModelDefaults
from services.worker.frame_client import SILENCE_SECONDS as STREAM_SILENCE_SECONDS
from services.worker.health import SERVICE, AttachmentHealth
from services.worker.held_claims import HeldTasks
from services.worker.interrupts import TrustGate
from services.worker.ledger_client import LedgerClient
from services.worker.live_server import LiveServicer
from services.worker.model_runner import RunnerModels
from services.worker.models import DirectModels, Models
from services.worker.own_calls import OwnRuns
from services.worker.replay import RecordedTools, load_record
from services.worker.session import SILENCE_SECONDS, WorkerIdentity, WorkerSession
from services.worker.supervisor import CrashBackoff, Supervisor, drain
from services.worker.tools_client import ToolsClient
from tenure.agents.functions import undo_tools_of
from tenure.agents.vendor_clients import name_missing_keys
from tenure.control import Function
from tenure.domain.access import Role
from tenure.domain.agents import BUILD, BUILD_RULE
from tenure.domain.fairness import NO_SLOTS, ReservedSlots, Slots
from tenure.domain.fencing import MIN_BYTES, holder_proof
from tenure.domain.outbound import problem_of
from tenure.domain.task import (
    BUILT_IN_LOOPS,
    CONTROL_LOOP,
    DEFAULT_LOOP,
    DEFAULT_MODEL,
    REPLAY_LOOP,
    UNDO_LOOP,
    Priority,
    offered_loop,
    undo_loop,
)
from tenure.domain.timeouts import MAX_PHASE_SECONDS
from tenure.model_providers.client import ModelClient
from tenure.model_providers.settings import ModelProviderSettings, open_providers
from tenure.runtime.observability import metrics
from tenure.runtime.process import Duties, Process
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.audit import RefusalLog, log_refusals
from tenure.runtime.security.process_security import Security, peer_problems
from tenure.runtime.service import CommonSettings, metrics_setting, run_service
from tenure.runtime.settings import Address, ConfigurationError, group, setting
from tenure.runtime.usage_reports import UsageReports
from tenure.validators import longest_request, validate
from tenure.validators.common import MAX_CHOICES, MIN_WINDOW_TOKENS
from tenure.validators.rules import NAME, WORKER_ID, WORKER_ID_RULE
from tenure.wire.access import access_rules
from tenure.wire.audit import target_of
from tenure.wire.checkpoint_service import REPORT_TIMEOUT_SECONDS
from tenure.wire.model_service import MAX_MESSAGE_BYTES

_log: Final = logging.getLogger(__name__)
LIVE_GRACE_SECONDS: Final = 0.1
_LONGEST_NAME: Final = 110
"""Leaves room for the pid and the random part: a worker's id has at most 128 characters."""
REPORTS_SILENCE_SECONDS: Final = 2 * REPORT_TIMEOUT_SECONDS
MAX_WAITING_REPORTS: Final = 1000
REPORTS_TRIED_SECONDS: Final = 300.0
"""The time in which another process may settle a lost claim's call, and the ledger may become reachable again."""
ANY_INTERFACE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  compared with the setting, never bound to


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Settings with the prefix TENURE_WORKER_."""

    id: str = setting("unique among live workers (default: its certificate's name, host, pid, random)", default="")
    listen: Address = setting("the address to serve live text on", default=Address("127.0.0.1:0"))
    metrics_listen: Address | None = metrics_setting()
    advertise: str = setting("host:port for gateways (default: the bound address)", default="")
    coordinator_address: tuple[Address, ...] = setting(
        "the coordinators' addresses", default=(Address("127.0.0.1:8471"),)
    )
    checkpoint_address: tuple[Address, ...] = setting(
        "the checkpoint services' addresses", default=(Address("127.0.0.1:8472"),)
    )
    models_address: tuple[Address, ...] = setting(
        "the model runners' addresses; empty: the worker calls the model providers itself", default=()
    )
    tools_address: tuple[Address, ...] = setting("the tool services' addresses", default=(Address("127.0.0.1:8473"),))
    slots: int = setting("the maximum number of tasks at a time", default=16, minimum=1, maximum=1024)
    reserved_slots_high: int = setting("slots reserved for HIGH tasks", default=0, minimum=0)
    reserved_slots_normal: int = setting("further slots reserved for NORMAL and HIGH tasks", default=0, minimum=0)
    build: str = setting("the build of its code: pins tasks to the revisions of this code (default: none)", default="")
    agent_tenants: tuple[str, ...] = setting(
        "the tenants in whose registries its agents go (default: those of its pool, or default)", default=()
    )
    queues: tuple[str, ...] = setting("the queues to take tasks from", default=("default",))
    priorities: tuple[str, ...] = setting("the priority tiers to take tasks of", default=("HIGH", "NORMAL", "LOW"))
    loops: tuple[str, ...] = setting("the loops to offer: messages, control", default=(DEFAULT_LOOP,))
    control_modules: tuple[str, ...] = setting("modules with FUNCTIONS for the loop control", default=())
    recorded_calls_file: Path | None = setting(
        "the entries of the task whose record answers tool calls, for the loop replay", default=None
    )
    replay_model: str = setting(
        "the model of agents in a replay of code; empty: the record answers their calls", default=""
    )
    model: str = setting("the model of tasks that name none", default=DEFAULT_MODEL)
    max_output_tokens: int = setting(
        "the maximum output of a model call, for tasks that set none", default=8192, minimum=1, maximum=64000
    )
    context_window_tokens: int = setting(
        "the maximum input and output of a model call in tokens; 0: the model's context window", default=0, minimum=0
    )
    functions_use_runner: bool = setting(
        "make the model calls of agents in Python, and of other functions, by the model runners, too", default=True
    )
    model_timeout_seconds: float = setting(
        "the timeout of a model call", default=600.0, minimum=0.1, maximum=MAX_PHASE_SECONDS
    )
    model_silence_seconds: float = setting(
        "the longest silence in a model call; 0: by the host of the endpoint, see docs/models.md",
        default=0.0,
        minimum=0.0,
    )
    prompt_caching: bool = setting("use the provider's prompt caching", default=True)
    count_tokens: bool = setting("let the provider count long prompts, if it can", default=True)
    count_tokens_above: int = setting(
        "the estimated tokens of a prompt above which the provider counts it", default=8192, minimum=0
    )
    sees_images: tuple[str, ...] = setting(
        "models that see images besides those that are known to, as patterns, or with ! models that do not", default=()
    )
    drain_seconds: float = setting("the time to give tasks back at the end", default=5.0, minimum=0.0)
    providers: ModelProviderSettings = group(ModelProviderSettings)
    common: CommonSettings = group(CommonSettings)

    def problems(self) -> Iterator[str]:
        """Yields the settings that a coordinator would refuse, and loops that this worker does not have.

        An unknown loop must not be offered: the worker would drive its tasks with another loop.
        """
        if len(self.queues) > MAX_CHOICES or not all(map(NAME.match, self.queues)):
            yield f"TENURE_WORKER_QUEUES: at most {MAX_CHOICES} names of up to 63 letters, digits, dots, - and _"
        if not set(self.priorities) <= set(Priority.__members__):
            yield f"TENURE_WORKER_PRIORITIES: use only {', '.join(Priority.__members__)}"
        if self.reserved_slots_high + self.reserved_slots_normal > self.slots:
            yield "TENURE_WORKER_RESERVED_SLOTS_HIGH and …_NORMAL: their sum must be at most TENURE_WORKER_SLOTS"
        if 0 < self.context_window_tokens < MIN_WINDOW_TOKENS:
            yield f"TENURE_WORKER_CONTEXT_WINDOW_TOKENS: must be 0, or at least {MIN_WINDOW_TOKENS}"
        for loop in self.loops:
            if loop not in {*BUILT_IN_LOOPS, REPLAY_LOOP}:
                known = ", ".join(sorted(BUILT_IN_LOOPS))
                yield f"TENURE_WORKER_LOOPS: this worker knows no loop {loop!r}; use {known}"
        if (REPLAY_LOOP in self.loops) != (self.recorded_calls_file is not None) or {*self.loops} > {REPLAY_LOOP}:
            yield (
                "TENURE_WORKER_LOOPS=replay and TENURE_WORKER_RECORDED_CALLS_FILE belong together, and without "
                "other loops, because such a worker executes no tool"
            )
        yield from self._function_problems()
        yield from self._identity_problems()
        if DEFAULT_LOOP in self.loops or (REPLAY_LOOP in self.loops and not self._has_functions):
            yield from self._provider_problems()
        yield from peer_problems(self.common, self.services)

    @property
    def services(self) -> dict[str, tuple[Address, ...]]:
        """The addresses of the services that it calls, by their variables."""
        return {
            "TENURE_WORKER_COORDINATOR_ADDRESS": self.coordinator_address,
            "TENURE_WORKER_CHECKPOINT_ADDRESS": self.checkpoint_address,
            "TENURE_WORKER_TOOLS_ADDRESS": self.tools_address,
            **({"TENURE_WORKER_MODELS_ADDRESS": self.models_address} if self.models_address else {}),
        }

    def foreign_key_problem(self, key_id: str) -> str:
        """Returns why the worker stopped when a service did not have the coordinator's signing key."""
        listed = ", ".join(f"{variable}={','.join(addresses)}" for variable, addresses in self.services.items())
        return (
            f"the coordinator signs with the key {key_id!r}, and another service does not have it: these are services "
            f"of different installations, or the key is missing in VERIFYING_KEYS_FILE of that service; see {listed}"
        )

    def _provider_problems(self) -> Iterator[str]:
        """Yields what is missing to call the providers. A worker with model runners needs no key."""
        if not self.models_address:
            yield from self.providers.missing(self.model)

    @property
    def _has_functions(self) -> bool:
        return bool(self.control_modules)

    @property
    def replays(self) -> bool:
        """Whether it runs one task of the loop `replay`, and no other."""
        return REPLAY_LOOP in self.loops

    def _function_problems(self) -> Iterator[str]:
        if CONTROL_LOOP in self.loops and not self.control_modules:
            yield "TENURE_WORKER_CONTROL_MODULES is missing: the loop control needs modules with functions"

    def _identity_problems(self) -> Iterator[str]:
        if self.id and not WORKER_ID.match(self.id):
            yield f"TENURE_WORKER_ID: {self.id!r} is not {WORKER_ID_RULE}"
        if self.build and not BUILD.match(self.build):
            yield f"TENURE_WORKER_BUILD: {self.build!r} is not {BUILD_RULE}"
        if self.advertise and (problem := problem_of(self.advertise)):
            yield f"TENURE_WORKER_ADVERTISE: {self.advertise!r}: {problem}"

    def identity(
        self,
        port: int,
        functions: Mapping[str, str],
        session_secret: bytes,
        certificate_name: str = "",
        undoing: Sequence[str] = (),
    ) -> WorkerIdentity:
        """Returns the identity that Hello sends to coordinators. Each control function is offered as a loop.

        `functions`: the digests of their definitions. A worker with a build also offers these revisions. `undoing`: the
        functions with own tools that undo effects.
        A worker bound to all interfaces advertises its host name, if gateways can connect to such a name.
        `certificate_name`: a worker with a certificate may only have its name, or that name with "-" and more.
        """
        host = socket.gethostname() if self.listen.host in ANY_INTERFACE else self.listen.rpartition(":")[0]
        host_name = re.sub(r"[^a-zA-Z0-9.-]", "-", socket.gethostname()).lstrip(".-")[:80] or "worker"
        own_name = f"{certificate_name}-{host_name}" if certificate_name else host_name
        worker_id = self.id or f"{own_name[:_LONGEST_NAME]}-{os.getpid()}-{secrets.token_hex(3)}"
        revisions = [offered_loop(name, digest) for name, digest in functions.items() if self.build]
        plain = (loop for loop in self.loops if loop != CONTROL_LOOP)
        loops = (*plain, *map(offered_loop, functions), *revisions, UNDO_LOOP, *map(undo_loop, undoing))
        if self.replays:  # whatever functions it has: any other task would be answered from the record
            loops = (REPLAY_LOOP,)
        tiers = tuple(Priority[name] for name in self.priorities)
        address = self.advertise or f"{host}:{port}"
        if problem := problem_of(address):  # for example a host name of digits only
            _log.warning("no live text: set TENURE_WORKER_ADVERTISE", extra={"address": address, "why": problem})
            address = ""
        return WorkerIdentity(worker_id, self.queues, loops, address, session_secret, tiers, self.build)


@dataclass(frozen=True, kw_only=True)
class OwnFunctionsSettings(WorkerSettings):
    """The settings of a worker that a program starts with functions of its own: it needs no modules."""

    loops: tuple[str, ...] = setting("the loops to offer: control, messages", default=(CONTROL_LOOP,))

    @property
    def _has_functions(self) -> bool:
        return True

    def _function_problems(self) -> Iterator[str]:
        if CONTROL_LOOP not in self.loops and not self.replays:
            yield "TENURE_WORKER_LOOPS: must contain control, because this worker has functions"


async def compose(process: Process, settings: WorkerSettings, functions: Mapping[str, Function] = NO_FUNCTIONS) -> None:
    """Opens the clients, then the live text server, then the session, which brings tasks.

    Drains before anything closes. `functions`: besides those of the modules that the settings name.
    """
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # its line for every call repeats what the ledger has
    held_tasks, trust, crash_backoff = HeldTasks(), TrustGate(), CrashBackoff()
    duties = await process.open(Duties())
    security = Security.load(settings.common, Role.WORKER, settings.listen, access_rules)
    if (settings.models_address and settings.functions_use_runner) or (settings.replays and not settings.replay_model):
        name_missing_keys(os.environ)  # of clients that make no call themselves
    functions = load_functions(settings.control_modules, functions)
    definitions = definitions_of(functions, settings.build)
    dependencies = replace(
        await _open_dependencies(process, settings, security, trust, duties, functions),
        digests=digests_of(definitions),
    )
    session_secret = secrets.token_bytes(MIN_BYTES)
    live_text = LiveServicer(held_tasks, holder_proof(session_secret))
    server = await _serve_live_text(process, settings, security, live_text)

    reserved = ReservedSlots(settings.reserved_slots_high, settings.reserved_slots_normal)

    def free_slots() -> Slots:
        if process.stopping.is_set() or not dependencies.in_reach:
            return NO_SLOTS
        return reserved.slots(settings.slots - crash_backoff.count(), held_tasks.by_tier())

    def sample_slots() -> None:
        held, paused = len(held_tasks), crash_backoff.count()
        slots = {"used": held, "paused": paused, "free": max(0, settings.slots - held - paused)}
        for state, number in slots.items():
            metrics.gauge("tenure_worker_slots", number, state=state)

    foreign_keys = list[str]()

    def stop(key_id: str) -> None:
        foreign_keys.append(key_id)
        process.stopping.set()

    addresses = settings.coordinator_address
    undoing = [name for name, function in functions.items() if undo_tools_of(function)]
    identity = settings.identity(server.port, dependencies.digests, session_secret, security.name, undoing)
    session = WorkerSession(addresses, identity, held_tasks, trust, free_slots, security)
    supervisor = await process.open(
        Supervisor(dependencies, held_tasks, crash_backoff, session.release, settings.slots, stop)
    )
    duties.start("session", lambda: session.run(supervisor.take), may_end=True, silence_seconds=SILENCE_SECONDS)
    duties.start(
        "attendance", AttachmentHealth(server.health, lambda: session.is_attached).run, silence_seconds=SILENCE_SECONDS
    )
    process.enter(metrics.on_sample(sample_slots))
    if definitions and not settings.replays:
        channel = await process.open(open_channel(addresses, tls=security.peer(Role.COORDINATOR)))
        registration = WorkerAgentRegistration(
            channel, identity.worker_id, settings.build, settings.agent_tenants, definitions
        )
        duties.start("agents", registration.run, may_end=True, silence_seconds=REGISTRATION_SILENCE_SECONDS)
    await process.run_until_stopped()
    await drain(session, held_tasks, settings.drain_seconds)
    if foreign_keys:
        raise ConfigurationError([settings.foreign_key_problem(foreign_keys[0])])


async def _open_dependencies(
    process: Process,
    settings: WorkerSettings,
    security: Security,
    trust: TrustGate,
    duties: Duties,
    functions: Mapping[str, Function],
) -> Dependencies:
    """Opens the clients that all tasks share, and starts their streams as duties."""
    ledger = LedgerClient(
        await process.open(open_channel(settings.checkpoint_address, tls=security.peer(Role.CHECKPOINT))),
        joins_model_calls=bool(settings.models_address),
    )
    channel = await process.open(open_channel(settings.tools_address, tls=security.peer(Role.TOOLS)))
    recorded = settings.recorded_calls_file
    tools = RecordedTools(channel, load_record(recorded), recorded.parent) if recorded else ToolsClient(channel)
    if isinstance(tools, RecordedTools):
        tools.check_has_code(functions)
    models = await _open_models(process, settings, security, trust)
    duties.start("commit stream", ledger.run, silence_seconds=STREAM_SILENCE_SECONDS)
    duties.start("tool stream", tools.run, silence_seconds=STREAM_SILENCE_SECONDS)
    defaults = ModelDefaults(
        settings.model,
        settings.max_output_tokens,
        settings.context_window_tokens,
        settings.count_tokens_above,
        settings.sees_images,
        settings.functions_use_runner,
        settings.replay_model,
    )
    reports = UsageReports(
        ledger.report_usage,
        lambda result: metrics.count("tenure_worker_usage_reports_total", result=result),
        max_waiting=MAX_WAITING_REPORTS,
        tried_seconds=REPORTS_TRIED_SECONDS,
    )
    duties.start("usage reports", reports.run, silence_seconds=REPORTS_SILENCE_SECONDS)
    return Dependencies(ledger, tools, models, trust, defaults, reports, OwnRuns(trust), functions)


async def _open_models(process: Process, settings: WorkerSettings, security: Security, trust: TrustGate) -> Models:
    """Opens the model runners if there are any, else the model providers."""
    if settings.models_address:
        channel = open_channel(
            settings.models_address, tls=security.peer(Role.MODELS), max_message_bytes=MAX_MESSAGE_BYTES
        )
        return RunnerModels(await process.open(channel), trust, timeout_seconds=settings.model_timeout_seconds)
    providers = open_providers(
        settings.providers,
        silence_seconds=settings.model_silence_seconds,
        prompt_caching=settings.prompt_caching,
        counts_tokens=settings.count_tokens,
    )
    client = await process.open(ModelClient(providers, timeout_seconds=settings.model_timeout_seconds))
    return DirectModels(client)


async def _serve_live_text(
    process: Process, settings: WorkerSettings, security: Security, live_text: LiveServicer
) -> RpcServer:
    """Starts the live text server and binds its port."""
    server = RpcServer(
        settings.listen,
        security=security,
        validate=validate,
        longest_request=longest_request,
        grace_seconds=LIVE_GRACE_SECONDS,
        audit=await process.open(RefusalLog(target_of, log_refusals).opened()),
    )
    server.add(SERVICE, live_text)
    await process.open(server)
    _log.info("listening", extra={"address": server.address})
    return server


def main() -> int:
    """Runs the worker and returns its exit code."""
    return run_service("worker", WorkerSettings, os.environ, compose, arguments=sys.argv[1:])


def run_with(functions: Mapping[str, Function], settings: Mapping[str, str]) -> int:
    """Runs a worker with functions of the program that calls this, and returns its exit code.

    `settings`: variables, before those of the environment; in a replay after them, because its worker must take no
    other task. In a terminal the log is for people by default.
    """
    defaults = {"TENURE_LOG_FORMAT": "human"} if sys.stderr.isatty() else {}
    replays = bool(os.environ.get("TENURE_WORKER_RECORDED_CALLS_FILE"))
    environment = {**defaults, **settings, **os.environ} if replays else {**defaults, **os.environ, **settings}
    return run_service("worker", OwnFunctionsSettings, environment, partial(compose, functions=functions))
