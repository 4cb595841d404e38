"""Agents of Temporal whose model calls are activities: a worker of them, or, with --seconds, their client.

Each activity streams one answer of the model provider, and sends a heartbeat with each piece.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import signal
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.peers.programs.agent import say

QUEUE = "agents"
CALL_SECONDS = 120
PIECE_BYTES = 65_536


class ModelCalls:
    """The activity of a model call. `url`: of the provider."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model

    @activity.defn
    def call(self, task: str, step: int) -> str:
        headers = {
            "content-type": "application/json",
            "anthropic-version": "2023-06-01",
            "x-api-key": "none",
            "x-tenure-attempt": f"{task}/{step}/{activity.info().attempt}",
        }
        messages = [{"role": "user", "content": f"{task}, step {step}"}]
        body = {"model": self._model, "max_tokens": 4096, "stream": True, "messages": messages}
        request = urllib.request.Request(f"{self._url}/v1/messages", json.dumps(body).encode(), headers)
        pieces = []
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
            while piece := answer.read1(PIECE_BYTES):
                pieces.append(piece)
                activity.heartbeat()
        return b"".join(pieces).decode()


@workflow.defn
class Agent:
    """The workflow of one task."""

    @workflow.run
    async def run(self, task: str, steps: int, heartbeat_seconds: int) -> str:
        for step in range(1, steps + 1):
            await workflow.execute_activity_method(
                ModelCalls.call,
                args=[task, step],
                start_to_close_timeout=timedelta(seconds=CALL_SECONDS),
                heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
            )
        return "done"


async def _work(options: argparse.Namespace) -> None:
    """Runs a worker until SIGTERM. A drain lets its model calls end."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    client = await Client.connect(options.store)
    calls = ModelCalls(options.url, options.model)
    with ThreadPoolExecutor(options.at_once) as threads:
        worker = Worker(
            client,
            task_queue=QUEUE,
            workflows=[Agent],
            activities=[calls.call],
            activity_executor=threads,
            max_concurrent_activities=options.at_once,
            graceful_shutdown_timeout=timedelta(seconds=CALL_SECONDS),
        )
        async with worker:
            say("ready")
            await stopping.wait()


async def _submit(options: argparse.Namespace) -> None:
    """Runs so many workflows at once, begins none after the seconds, and waits until all have ended."""
    client = await Client.connect(options.store)
    until, numbers = time.monotonic() + options.seconds, itertools.count()

    async def place(delay: float) -> None:
        await asyncio.sleep(delay)
        while time.monotonic() < until:
            task = f"task-{next(numbers)}"
            arguments = [task, options.steps, options.heartbeat_seconds]
            await client.execute_workflow(Agent.run, args=arguments, id=task, task_queue=QUEUE)

    await asyncio.gather(*(place(number / options.at_once) for number in range(options.at_once)))
    say(f"done {next(numbers)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--at-once", type=int, required=True)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--heartbeat-seconds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.0)
    return parser.parse_args()


if __name__ == "__main__":
    chosen = _options()
    asyncio.run(_submit(chosen) if chosen.seconds else _work(chosen))
