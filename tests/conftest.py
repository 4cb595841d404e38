"""What all tests share: the fixtures, one module per real component, and patience with a busy machine."""

import os

from hypothesis import HealthCheck, settings

# Before gRPC is imported. As root a Postgres is started by a fork, and gRPC's handlers start its threads anew in the
# child, which may crash before it becomes Postgres. No child here goes on with its parent's channels.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

# Hypothesis fails an example that takes longer than 200 ms, and data that is slow to draw: on a busy machine any is.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

pytest_plugins = [
    "tests.fix_checkpoint",
    "tests.fix_collector",
    "tests.fix_coordinator",
    "tests.fix_etcd",
    "tests.fix_etcd_cluster",
    "tests.fix_gateway",
    "tests.fix_leases",
    "tests.fix_postgres",
    "tests.fix_proxy",
    "tests.fix_network",
    "tests.fix_node",
    "tests.fix_provider",
    "tests.fix_sandbox",
    "tests.fix_simulator",
    "tests.fix_time",
    "tests.fix_tools",
    "tests.fix_mcp",
    "tests.fix_webhooks",
    "tests.fix_worker",
    "tests.turns",
]
