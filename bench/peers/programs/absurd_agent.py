"""The agent as a task of Absurd."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from bench.peers.programs import agent

TASK = "agent"


class Finished:
    """Counts the tasks whose function returned in this process."""

    def __init__(self) -> None:
        self._count, self._changed = 0, threading.Condition()

    def add(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)
            self._count -= count


def main() -> None:
    options = agent.read_options()
    tool, finished = agent.Tool(options), Finished()
    _create_tables(options.store)
    client = Absurd(options.store)
    client.create_queue()

    def handle(parameters: Any, context: Any) -> str:
        for number in range(1, agent.STEPS + 1):
            context.step(f"step-{number}", lambda number=number: tool.effect(parameters["task"], number))
        finished.add()
        return "done"

    def work() -> None:
        worker = Absurd(options.store)  # a client has one connection, which its tasks share
        worker.register_task(TASK)(handle)
        lease = {"claim_timeout": options.lease_seconds} if options.lease_seconds else {}
        worker.start_worker(**lease)

    def run(work: agent.Work) -> None:
        spawned = [client.spawn(TASK, {"task": task}, queue="default")["task_id"] for task in work.tasks]
        finished.wait(len(spawned))
        for task_id in spawned:
            result = client.await_task_result(task_id)
            if result.state != "completed":
                raise RuntimeError(f"the task {task_id} of Absurd is {result.state}")

    for _ in range(options.at_once):
        threading.Thread(target=work, daemon=True).start()
    agent.serve(run)


def _create_tables(store: str) -> None:
    """Creates Absurd's schema from the SQL that `absurdctl init` uses. Two programs create it one after the other."""
    with psycopg.connect(store) as connection:
        connection.execute("select pg_advisory_xact_lock(1)")
        row = connection.execute("select to_regnamespace('absurd')").fetchone()
        if row is not None and row[0] is None:
            connection.execute(BUNDLED_SCHEMA_SQL)


if __name__ == "__main__":
    main()
