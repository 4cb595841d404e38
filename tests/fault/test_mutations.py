"""Tests of the tests: with a guard taken away, a run of the very same calls must break the invariant it is there for.

Each scenario runs twice: against the services as they are, when the checker must have nothing to say, and with the
mutation, when it must name the invariant. `python -m tests.fault.mutants --list` prints which.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from checker.verify import verify
from devstack.postgres_process import PostgresProcess
from devstack.stores import ensure_database
from tests.fault.mutants.catalogue import MUTATIONS
from tests.fault.mutation_bench import MutationBench
from tests.fault.mutation_scenarios import FAILPOINTS, SCENARIOS

pytestmark = pytest.mark.server

CLAIM_UNTOLD = {"ledger_claim_id"}
"""Refused for its claim and not its number: the audit of refusals has only numbers, so it is left out there."""

ELSEWHERE = {"intent_before_effect", "session_end_is_conditional"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mutation_bench(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresProcess, signing_keys: Path
) -> AsyncIterator[MutationBench]:
    names = "mutated_ledger", "mutated_tools"
    for name in names:
        await ensure_database(postgres_server.dsn(), name)
    ledger, tools = (postgres_server.dsn(name) for name in names)
    async with MutationBench(ledger, tools, signing_keys, tmp_path_factory.mktemp("mutation")) as bench:
        yield bench


@pytest.mark.faults
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_checker_notices_that_a_guard_is_missing(
    mutation_bench: MutationBench, tmp_path: Path, name: str
) -> None:
    for mutation in ("", name):
        folder = tmp_path / (mutation or "whole")
        folder.mkdir()
        async with mutation_bench.arena(folder, mutation, FAILPOINTS.get(name)) as arena:
            await SCENARIOS[name](arena)
            history = await arena.history()
        violations = verify(replace(history, refusals=None) if name in CLAIM_UNTOLD else history)
        if not mutation:
            assert violations == [], "the services as they are"
    assert {each.invariant for each in violations} & set(MUTATIONS[name].invariants), violations


def test_no_module_is_imported_before_its_edit() -> None:
    """Else the service would refuse to start with the mutation, and no run would try the guard."""
    program = "import sys, tests.fault.mutants.__main__; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    edited = {edit.where for mutation in MUTATIONS.values() for edit in mutation.edits if not edit.sql}
    assert edited.isdisjoint(imported.split())


def test_every_mutation_has_a_scenario() -> None:
    assert {*SCENARIOS, *ELSEWHERE} == set(MUTATIONS)
