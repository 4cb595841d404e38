"""The agent as a workflow of Temporal, each step an activity."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bench.peers.programs import agent

QUEUE = "agents"
DEFAULT_LEASE_SECONDS = 10


class Activities:
    """The activity of a step."""

    def __init__(self, tool: agent.Tool) -> None:
        self._tool = tool

    @activity.defn
    async def step(self, task: str, number: int) -> str:
        return self._tool.effect(task, number)


@workflow.defn
class Agent:
    """The workflow. `lease_seconds`: the time limit of each activity."""

    @workflow.run
    async def run(self, task: str, lease_seconds: int) -> str:
        for number in range(1, agent.STEPS + 1):
            await workflow.execute_activity_method(
                Activities.step, args=[task, number], start_to_close_timeout=timedelta(seconds=lease_seconds)
            )
        return "done"


async def _main(options: agent.Options) -> None:
    client = await Client.connect(options.store)
    activities = Activities(agent.Tool(options))
    lease_seconds = options.lease_seconds or DEFAULT_LEASE_SECONDS

    async def run(task: str) -> None:
        await client.execute_workflow(Agent.run, args=[task, lease_seconds], id=task, task_queue=QUEUE)

    async with Worker(client, task_queue=QUEUE, workflows=[Agent], activities=[activities.step]):
        await agent.serve_async(lambda work: agent.in_loop(run, work.tasks, options.at_once))


if __name__ == "__main__":
    asyncio.run(_main(agent.read_options()))
