"""The model of docs/sizing.md: it multiplies measured costs, and the page has its table."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from bench.sizing import COSTS, Load, main, needs, stores, table
from services.coordinator.lease_store.claim_keys import MAX_BATCH

PAGE = (Path(__file__).parents[2] / "docs/sizing.md").read_text(encoding="utf-8")
BEGIN = "<!-- the table: printed by python -m bench.sizing -->"
END = "<!-- the end of the table -->"
LOAD = Load(active=10_000)


def test_the_page_has_the_table_of_the_model() -> None:
    assert PAGE.partition(BEGIN)[2].partition(END)[0].strip() == table(LOAD)


def test_the_page_states_every_cost_of_the_model() -> None:
    stated = {tuple(re.split(r" *\| *", line.strip("| "))) for line in PAGE.splitlines() if line.startswith("| ")}
    by_service = {row[0]: row[1:] for row in stated if row[0] in COSTS and len(row) == 10}
    for service, cost in COSTS.items():
        assert by_service[service] == tuple(f"{value:,g}" for value in astuple(cost))


def test_twice_the_tasks_cost_twice_as_much() -> None:
    for one, two in zip(needs(LOAD), needs(replace(LOAD, active=20_000)), strict=True):
        assert two.cores == pytest.approx(2 * one.cores)
        assert two.processes >= one.processes
    assert stores(replace(LOAD, active=20_000)).wal_mb == pytest.approx(2 * stores(LOAD).wal_mb)


@pytest.mark.parametrize(
    ("change", "service"),
    [
        ({"watched_share": 0.5}, "gateway"),
        ({"pieces_a_second": 5.0}, "worker"),
        ({"step_seconds": 10.0}, "checkpoint"),
        ({"pickups_a_step": 2.0}, "coordinator"),
    ],
)
def test_more_of_a_load_costs_more(change: Any, service: str) -> None:
    cores = {need.service: need.cores for need in needs(replace(LOAD, **change))}
    assert cores[service] > next(need.cores for need in needs(LOAD) if need.service == service)


def test_held_tasks_have_a_slot_and_a_key() -> None:
    workers = next(need.processes for need in needs(LOAD) if need.service == "worker")
    assert workers * 250 >= LOAD.held
    assert stores(LOAD).etcd_keys >= LOAD.held + workers
    assert stores(LOAD).grant_txns * MAX_BATCH == pytest.approx(LOAD.pickups)


def test_larger_bodies_write_more() -> None:
    larger = stores(replace(LOAD, bodies_kib=50.0))
    assert larger.wal_mb > stores(LOAD).wal_mb
    assert larger.ledger_gb_a_day > stores(LOAD).ledger_gb_a_day


@pytest.mark.parametrize(
    "change", [{"active": 0}, {"held_share": 1.1}, {"step_seconds": 0.0}, {"pieces_a_second": -1.0}]
)
def test_a_load_that_cannot_be_is_refused(change: Any) -> None:
    with pytest.raises(ValueError, match=r"a load has|a share is"):
        replace(LOAD, **change)


def test_the_command_prints_other_loads(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--active", "500", "--step-seconds", "10"])
    assert "| active tasks | 500 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--held-share", "2"])
