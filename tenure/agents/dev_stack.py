"""Finds the stack of `tenure dev` that runs here, for workers without addresses of services."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tenure.client import Client
from tenure.domain.errors import TenureError
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.running_stack import (
    DEFAULT_ADDRESS,
    DEFAULT_DATA_DIR,
    SIMULATOR,
    find_addresses,
    given_vendors,
)
from tenure.v1.admin_service_pb2 import GetCallerRequest

_SERVICES: Final = {
    "coordinator": "TENURE_WORKER_COORDINATOR_ADDRESS",
    "checkpoint": "TENURE_WORKER_CHECKPOINT_ADDRESS",
    "tools": "TENURE_WORKER_TOOLS_ADDRESS",
}
_PROBE_SECONDS: Final = 2.0
_MODEL_RUNNER: Final = "TENURE_WORKER_MODELS_ADDRESS"
_USES_RUNNER: Final = "TENURE_WORKER_FUNCTIONS_USE_RUNNER"


def dev_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with which a worker joins the stack that runs on TENURE_DATA, else in this folder or above.

    Empty if an address is given, or if no stack runs. If the stack's model is simulated and `environment` gives no
    provider, they also send the libraries of the providers to the simulator. All tasks use the stack's model runner, as
    at its own workers, but functions with a provider of their own only if the stack's model is not simulated.
    """
    if any(environment.get(name) for name in _SERVICES.values()):
        return {}
    addresses = find_addresses(_data_dir(environment))
    if addresses is None:
        return {}
    is_simulated = SIMULATOR in addresses and not given_vendors(environment)
    models = _simulated(addresses[SIMULATOR]) if is_simulated else {}
    runner = {_MODEL_RUNNER: addresses["models"]} if "models" in addresses and _MODEL_RUNNER not in environment else {}
    if SIMULATOR in addresses and not is_simulated:  # its runner would send the calls to the simulator
        runner[_USES_RUNNER] = environment.get(_USES_RUNNER, "false")
    return {**{variable: addresses[service] for service, variable in _SERVICES.items()}, **runner, **models}


def _data_dir(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("TENURE_DATA") or DEFAULT_DATA_DIR)


def _simulated(url: str) -> dict[str, str]:
    """Returns the variables by which the libraries of the providers call the simulator."""
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "simulated",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "simulated",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # it would send traces to OpenAI
    }


def stack_of_another_folder(address: str = DEFAULT_ADDRESS) -> str:
    """Returns the data folder of the development stack at the usual ports; "" for other services, and for none.

    For a worker without addresses and without a stack in its folder: it would take the tasks of another project.
    """
    return asyncio.run(_stack_at(address))


async def _stack_at(address: str) -> str:
    async with Client(address) as client:
        try:
            caller = await client.admin.GetCaller(GetCallerRequest(), timeout=_PROBE_SECONDS)
        except (TenureError, PeerFailed):
            return ""
        return str(caller.stack_folder)


def advice_without_stack(environment: Mapping[str, str]) -> str:
    """Returns a hint for the person who starts a worker without addresses and without a stack; "" for other workers."""
    data = _data_dir(environment)
    if any(environment.get(name) for name in _SERVICES.values()) or find_addresses(data) is not None:
        return ""
    models = "" if given_vendors(environment) else ", and no simulator plays its models"
    where = f"on {data.resolve()}" if environment.get("TENURE_DATA") else "in this folder or above"
    return (
        f"no `tenure dev` runs {where}, so this worker looks for the services at their usual ports on this"
        f" machine{models}: start `tenure dev` in this folder first, or name its folder in TENURE_DATA"
    )
