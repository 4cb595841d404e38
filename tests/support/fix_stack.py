"""Stacks of a module or package on the stores of the run, for tests that break neither Postgres nor etcd.

options = await on_shared_stores(StackOptions(data_dir=folder, workers=0))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import pytest

from devstack import StackOptions
from devstack.etcd import EtcdProcess
from services.checkpoint.queries import MIGRATIONS as LEDGER_MIGRATIONS
from services.models.statements import MIGRATIONS as MODELS_MIGRATIONS
from services.tools.statements import MIGRATIONS as TOOLS_MIGRATIONS
from tests.support.fix_etcd import own_prefix
from tests.support.fix_postgres import MakeDatabase


class OnSharedStores(Protocol):
    """Returns the options with a database and a prefix of keys of their own in the stores of the run."""

    async def __call__(self, options: StackOptions) -> StackOptions: ...


@pytest.fixture(scope="session")
def on_shared_stores(new_database: MakeDatabase, etcd_process: EtcdProcess) -> OnSharedStores:
    async def place(options: StackOptions) -> StackOptions:
        of_models = [MODELS_MIGRATIONS] if options.model_runner else []
        prefix = {"TENURE_COORDINATOR_ETCD_KEY_PREFIX": own_prefix()}
        coordinator = {**options.environment.get("coordinator", {}), **prefix}
        return replace(
            options,
            postgres_dsn=await new_database("stack", LEDGER_MIGRATIONS, TOOLS_MIGRATIONS, *of_models),
            etcd_endpoints=etcd_process.endpoint,
            environment={**options.environment, "coordinator": coordinator},
        )

    return place
