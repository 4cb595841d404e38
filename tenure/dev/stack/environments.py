"""What each service of the stack finds in its environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tenure.dev.stack.layout import Layout
from tenure.dev.stack.options import StackOptions

FIRST_UID: Final = 61_000
UIDS_APART: Final = 1024
"""Replicas on one host must not share their sandboxes' uids; this is the most slots that one can have."""


@dataclass(slots=True)
class Places:
    """Where things are, filled in as they come up."""

    postgres_dsn: str = ""
    etcd_endpoints: str = ""
    model_url: str = ""
    search_url: str = ""
    checkpoint: str = ""
    tools: str = ""
    coordinator: str = ""


def environment_of(
    kind: str, name: str, address: str, options: StackOptions, layout: Layout, places: Places
) -> dict[str, str]:
    """The whole environment of one service, what the options add last."""
    own = {f"TENURE_{kind.upper()}_LISTEN": address, "TENURE_LOG_FORMAT": options.log_format}
    added: dict[str, str] = {}
    for key in ("*", kind, name):
        added.update(options.environment.get(key, {}))
    return {**own, **_OF_KIND[kind](name, options, layout, places), **added}


def _checkpoint(_name: str, options: StackOptions, layout: Layout, places: Places) -> dict[str, str]:
    return {
        "TENURE_CHECKPOINT_POSTGRES_DSN": places.postgres_dsn,
        "TENURE_CHECKPOINT_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
        "TENURE_CHECKPOINT_MIGRATE": "auto",
        "TENURE_CHECKPOINT_DEFAULT_MODEL": options.default_model,
        "TENURE_CHECKPOINT_WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128",
    }


def _tools(name: str, options: StackOptions, layout: Layout, places: Places) -> dict[str, str]:
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


def _coordinator(_name: str, _options: StackOptions, layout: Layout, places: Places) -> dict[str, str]:
    return {
        "TENURE_COORDINATOR_ETCD_ENDPOINTS": places.etcd_endpoints,
        "TENURE_COORDINATOR_CHECKPOINT_ADDRESS": places.checkpoint,
        "TENURE_COORDINATOR_TOOLS_ADDRESS": places.tools,
        "TENURE_COORDINATOR_SIGNING_KEY_FILE": str(layout.signing_key),
        "TENURE_COORDINATOR_VERIFYING_KEYS_FILE": str(layout.verifying_keys),
    }


def _gateway(_name: str, _options: StackOptions, _layout: Layout, places: Places) -> dict[str, str]:
    return {
        "TENURE_GATEWAY_CHECKPOINT_ADDRESS": places.checkpoint,
        "TENURE_GATEWAY_COORDINATOR_ADDRESS": places.coordinator,
        "TENURE_GATEWAY_TOOLS_ADDRESS": places.tools,
    }


def _worker(name: str, options: StackOptions, _layout: Layout, places: Places) -> dict[str, str]:
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


_OF_KIND: Final[dict[str, Callable[[str, StackOptions, Layout, Places], dict[str, str]]]] = {
    "checkpoint": _checkpoint,
    "tools": _tools,
    "coordinator": _coordinator,
    "gateway": _gateway,
    "worker": _worker,
}
