"""What all tests share: the fixtures, one module per real component, and patience with a busy machine."""

import gc
import os
from collections.abc import Generator

import pytest

# Before gRPC is imported. As root a Postgres is started by a fork, and gRPC's handlers start its threads anew in the
# child, which may crash before it becomes Postgres. No child here goes on with its parent's channels.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

pytest_plugins = [
    "tenure.testing.pytest_plugin",  # also where the package was installed before it had an entry point
    "tests.support.rewritten",
    "tests.support.closed_transports",
    "tests.support.watched_processes",
    "tests.support.shared_stores",  # before those that import it
    "tests.support.forked",
    "tests.support.forked_workers",
    "tests.support.fix_etcd",  # before those that import it
    "tests.support.fix_postgres",  # before the fixtures that use it
    "tests.support.fix_checkpoint",
    "tests.support.fix_closed_port",
    "tests.support.fix_collector",
    "tests.support.fix_tools",  # before the fixtures that import it
    "tests.support.fix_coordinator",
    "tests.support.fix_etcd_cluster",
    "tests.support.fix_gateway",
    "tests.support.fix_leases",
    "tests.support.fix_mail",
    "tests.support.fix_proxy",
    "tests.support.fix_network",
    "tests.support.fix_node",
    "tests.support.fix_browser",
    "tests.support.fix_provider",
    "tests.support.fix_sandbox",
    "tests.support.fix_simulator",
    "tests.support.fix_time",
    "tests.support.fix_mcp",
    "tests.support.fix_models",
    "tests.support.fix_webhooks",
    "tests.support.fix_stack",
    "tests.support.fix_worker",
    "tests.support.fix_own_tools",
    "tests.support.examples",
    "tests.support.work_units",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Half a gigabyte of modules and tests stays until the end: no garbage collection looks at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
