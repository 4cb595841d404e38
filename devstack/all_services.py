"""Runs one of each service on this machine with the settings of the environment: `tenure serve all`.

Postgres and etcd run already, and the databases are migrated. All processes get the same environment. If one service
ends, the others are stopped, and the supervisor of this process decides about a new start.

The services call each other on the loopback interface, without TLS unless TENURE_TLS_CERTIFICATE_FILE is set. A
certificate names one service, so the file has `{service}` in its path, which each service gets as its own name.

The gateway serves HTTP too, on 127.0.0.1:8480 unless TENURE_GATEWAY_HTTP_LISTEN is set; empty: no HTTP.

Each service calls the others where their LISTEN says, unless its own settings name other addresses.

The worker calls models through the model runner. If TENURE_WORKER_MODELS_ADDRESS is set and empty, there is no model
runner, and the worker calls them itself.

A stop drains the worker first, which gives its tasks back, and then the others. It waits for the model calls in flight,
for 40 s unless TENURE_MODELS_DRAIN_SECONDS is set: systemd kills after 90 s by default.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Iterable, Mapping
from typing import Final

from devstack import watchdog
from devstack.options import CALLED_BY, HOST, HTTP_LISTEN, USUAL_PORTS, address_variable
from tenure.runtime.security.tls import SERVICE
from tenure.runtime.settings import Address
from tenure.serve import SERVICES, command_line

DRAIN_SECONDS: Final = 60.0
WORKER: Final = "worker"
MODELS_ADDRESS: Final = address_variable("worker", "models")
DRAINS: Final = {WORKER: "TENURE_WORKER_DRAIN_SECONDS", "models": "TENURE_MODELS_DRAIN_SECONDS"}
"""The services that drain for a time of their own, and their settings of it."""
DRAINED_SECONDS: Final = {WORKER: 5.0, "models": 40.0}
"""What these settings are unless they are set."""
ENDING_SECONDS: Final = 5.0
"""How long the others wait for a worker whose drain is over."""
CLOSING_SECONDS: Final = 35.0
"""How long a process may take to close after its drain."""
CERTIFICATE: Final = "TENURE_TLS_CERTIFICATE_FILE"
KEY: Final = "TENURE_TLS_KEY_FILE"
_USAGE: Final = "usage: tenure serve all\n\n`tenure serve NAME --help` lists the settings of each service.\n"
_ONE_CERTIFICATE: Final = (
    f"tenure: {CERTIFICATE} names one file for all services, but each needs a certificate of its own: write {SERVICE} "
    f"where its name belongs, as in {CERTIFICATE}=certs/{SERVICE}.pem and {KEY}=certs/{SERVICE}.key.pem, which "
    "`tenure keys certs create certs` makes\n"
)
_WRONG_COMMAND: Final = 2


def main() -> int:
    """Runs the services until one ends or a signal stops them, and returns the exit code."""
    if sys.argv[1:]:
        asks = sys.argv[1:] in (["--help"], ["-h"])
        (sys.stdout if asks else sys.stderr).write(_USAGE)
        return 0 if asks else _WRONG_COMMAND
    if (certificate := os.environ.get(CERTIFICATE)) and SERVICE not in certificate:
        sys.stderr.write(_ONE_CERTIFICATE)
        return _WRONG_COMMAND
    return asyncio.run(_run(os.environ))


def completed(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of all processes: with what it does not state."""
    assumed = {
        HTTP_LISTEN: f"{HOST}:{USUAL_PORTS['gateway-http']}",
        **{
            address_variable(service, called): _address_of(called, environment)
            for service, calls in CALLED_BY.items()
            for called in calls
        },
        **{variable: f"{DRAINED_SECONDS[name]:g}" for name, variable in DRAINS.items()},
    }
    return {**assumed, **environment}


def _address_of(service: str, environment: Mapping[str, str]) -> str:
    listen = environment.get(f"TENURE_{service.upper()}_LISTEN", "").strip()
    return Address(listen).from_here if listen else f"{HOST}:{USUAL_PORTS[service]}"


def services_of(environment: Mapping[str, str]) -> list[str]:
    """Returns the services to start: without the model runner if the worker has no address of one."""
    return [name for name in SERVICES if name != "models" or environment[MODELS_ADDRESS]]


def environment_of(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of one service: with the paths of its own certificate and key."""
    own = {key: environment[key].replace(SERVICE, name) for key in (CERTIFICATE, KEY) if key in environment}
    return {**environment, **own}


async def _run(environment: Mapping[str, str]) -> int:
    environment = completed(environment)
    if http := environment[HTTP_LISTEN]:
        sys.stderr.write(f"tenure: the gateway serves HTTP on {http}\n")
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    processes = {name: await _start(name, environment_of(name, environment)) for name in services_of(environment)}
    stopped = asyncio.create_task(stopping.wait(), name="stop")
    ends = {name: asyncio.create_task(process.wait(), name=name) for name, process in processes.items()}
    await asyncio.wait([stopped, *ends.values()], return_when=asyncio.FIRST_COMPLETED)
    is_asked = stopping.is_set()
    ended = {name: task.result() for name, task in ends.items() if task.done()}
    for name, code in ended.items():
        if not is_asked:
            sys.stderr.write(f"tenure: {name} ended with code {code}; the other services are stopped\n")
    stopped.cancel()
    await _drain_all(processes, environment)
    return exit_code([*ended.values(), *(process.returncode for process in processes.values())], is_asked=is_asked)


def exit_code(codes: Iterable[int | None], *, is_asked: bool) -> int:
    """Returns the first failure among the exit codes of the services; 1 for a signal.

    Not `is_asked`: a service ended without a request to stop, so the code is never 0, even if the service's is:
    systemd's `Restart=on-failure` must start all of them again.
    """
    failure = next((1 if code is None or code < 0 else code for code in codes if code != 0), 0)
    return failure if is_asked else failure or 1


async def _start(name: str, environment: Mapping[str, str]) -> Process:
    process = await asyncio.create_subprocess_exec(
        *command_line(name),
        stdin=asyncio.subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C in the terminal is for this process, which drains the services
    )
    watchdog.watch_process(process.pid)
    return process


def longest_drain(name: str, environment: Mapping[str, str], closing_seconds: float = CLOSING_SECONDS) -> float:
    """Returns after how many seconds a service that was asked to stop is killed."""
    if name not in DRAINS:
        return DRAIN_SECONDS
    try:
        return float(environment[DRAINS[name]]) + closing_seconds
    except ValueError:  # the service refuses this setting, and does not start
        return DRAIN_SECONDS


async def _drain_all(processes: Mapping[str, Process], environment: Mapping[str, str]) -> None:
    """Stops the worker first: it gives its tasks back, which needs the other services. As `Stack` does."""
    drains = {name: _drain(process, longest_drain(name, environment)) for name, process in processes.items()}
    worker = asyncio.create_task(drains.pop(WORKER), name=WORKER)
    await asyncio.wait([worker], timeout=longest_drain(WORKER, environment, ENDING_SECONDS))
    await asyncio.gather(worker, *drains.values())


async def _drain(process: Process, longest_seconds: float) -> None:
    """Sends SIGTERM and waits for the end. Kills a process that takes longer."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), longest_seconds)
    except TimeoutError:
        process.kill()
        await process.wait()
