"""`python -m bench.peers --environment FOLDER [--docs FOLDER] [NAME…] [--quick | --smoke]`: compares the engines.

Installs the peers into an environment of their own. With --docs it writes peers.md, peers.json and peers.svg into that
folder, if every engine ran.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.peers.environment import Environment, NotInstalledError
from bench.peers.page import Run, faults_table, page, steps_table, svg
from bench.peers.peers import NOT_COMPARED, PEERS, TENURE_FAULTS, TENURE_SERVICES, Peer
from bench.peers.results import TENURE, TENURE_STEP, TITLES, Result, as_json
from bench.run import Options, Size, look
from devstack.postgres_process import PostgresProcess

if TYPE_CHECKING:
    from bench.peers.engine import PeerEngine
    from bench.peers.tenure_engine import TenureEngine

NAMES: Final = (TENURE, *(peer.name for peer in PEERS))


def main() -> int:
    """Returns the exit code: 1 if an engine failed or could not be installed."""
    arguments = _arguments()
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC reads it at its import
    names = arguments.names or NAMES
    environment = Environment(arguments.environment.resolve())
    peers, missing = _install([peer for peer in PEERS if peer.name in names], environment)
    if not peers and TENURE not in names:
        return 1
    folder = Path(tempfile.mkdtemp(prefix="tenure-peers-", dir=arguments.data))
    folder.chmod(0o711)  # Postgres refuses to run as root: it enters under another account
    results = [*(_tenure_results() if TENURE in names else ()), *map(_peer_result, peers)]
    options = Options(folder, _size(arguments), _print_progress)
    machine, began = look(folder), time.monotonic()
    try:
        asyncio.run(_measure(peers, environment, {result.name: result for result in results}, options))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    run = Run(machine, f"{datetime.now(UTC):%Y-%m-%d}", options.size, time.monotonic() - began, results, missing)
    failed = [result.title for result in results if result.error]
    _print(run)
    if failed:
        print(f"{', '.join(failed)} failed; the data and logs are kept in {folder}.", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    if missing:
        return 1
    if arguments.docs is not None:
        write(run, arguments.docs)
    return 0


def write(run: Run, docs: Path) -> None:
    """Writes the page, the figures and the plot."""
    figures = {
        "date": run.date,
        "size": run.size.value,
        "seconds": run.seconds,
        "machine": asdict(run.machine),
        "engines": as_json(run.results),
        "not_compared": [NOT_COMPARED, *run.missing],
    }
    (docs / "peers.md").write_text(page(run), encoding="utf-8")
    (docs / "peers.json").write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (docs / "peers.svg").write_text(svg(run.results), encoding="utf-8")


def _install(peers: Sequence[Peer], environment: Environment) -> tuple[list[Peer], list[str]]:
    """Returns the peers that are installed, and a sentence for each that cannot be."""
    installed, missing = [], []
    for peer in peers:
        try:
            environment.install(peer, _print_progress)
        except NotInstalledError as error:
            missing.append(str(error))
            _print_progress(str(error))
        else:
            installed.append(peer)
    return installed, missing


def _peer_result(peer: Peer) -> Result:
    return Result(peer.name, peer.title, peer.version, peer.store.value, peer.takeover.value, peer.settings)


def _tenure_results() -> list[Result]:
    """Returns a result for each scene. Only the scene with the tool service has faults."""
    settings = {TENURE_STEP: (TENURE_SERVICES,), TENURE: (TENURE_SERVICES, TENURE_FAULTS)}
    store = "Postgres; claims in etcd"
    return [Result(name, title, "", store, "the engine", settings[name]) for name, title in TITLES.items()]


async def _measure(
    peers: Sequence[Peer], environment: Environment, results: Mapping[str, Result], options: Options
) -> None:
    """Runs the rounds, then the faults."""
    from bench.peers.engine import PeerEngine, run_rounds
    from bench.peers.fault_runs import run_faults
    from bench.peers.stores import Stores
    from bench.peers.tenure_engine import TenureEngine

    async with PostgresProcess(options.folder / "postgres") as postgres:
        stores = Stores(postgres, environment)
        engines: list[TenureEngine | PeerEngine] = [PeerEngine(peer, environment, stores) for peer in peers]
        if TENURE in results:
            engines = [*(TenureEngine(postgres, name) for name in TITLES), *engines]
        await run_rounds(engines, results, options)
        await run_faults([engine for engine in engines if engine.name != TENURE_STEP], results, options)


def _print(run: Run) -> None:
    """Prints the tables where all engines have results, else the errors."""
    complete = [result for result in run.results if not result.error]
    if any(result.name == TENURE_STEP for result in complete):
        print("\n".join([*steps_table(complete), "", *faults_table(complete), ""]))
    else:
        print(json.dumps(as_json(complete), indent=2))
    for result in run.results:
        if result.error:
            print(f"{result.title} failed: {result.error}", file=sys.stderr)
    for sentence in (NOT_COMPARED, *run.missing):
        print(sentence)


def _size(arguments: argparse.Namespace) -> Size:
    if arguments.smoke:
        return Size.SMOKE
    return Size.QUICK if arguments.quick else Size.FULL


def _print_progress(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(NAMES)}")
    parser.add_argument("--environment", type=Path, required=True, help="the folder of the peers' own environment")
    parser.add_argument("--docs", type=Path, help="the folder to write peers.md, peers.json and peers.svg into")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="fewer samples")
    sizes.add_argument("--smoke", action="store_true", help="only check that everything runs; the figures mean nothing")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the directory, and so the disk, to measure on")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"unknown engine: {', '.join(sorted(unknown))}; the engines are {', '.join(NAMES)}")
    if arguments.docs is not None and arguments.names:
        parser.error("--docs writes the comparison of all engines: give no names with it")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
