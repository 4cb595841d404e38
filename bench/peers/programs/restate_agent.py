"""The agent as a service of Restate: the handler, which the Restate server calls, and the client of its ingress."""

from __future__ import annotations

import asyncio

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.peers.programs import agent

NO_LIMIT = 2147483647


def main() -> None:
    asyncio.run(_main(agent.read_options()))


async def _main(options: agent.Options) -> None:
    tool = agent.Tool(options)
    service = restate.Service("Agent")

    @service.handler()
    async def run(ctx: restate.Context, task: str) -> str:
        for number in range(1, agent.STEPS + 1):
            await ctx.run_typed(f"step-{number}", tool.effect, task=task, step=number)
        return "done"

    config = Config()
    config.bind = [f"127.0.0.1:{options.port}"]
    config.h2_max_concurrent_streams = config.keep_alive_max_requests = config.keep_alive_timeout = NO_LIMIT
    serving = asyncio.create_task(serve(restate.app([service]), config, shutdown_trigger=asyncio.Event().wait))
    limits = httpx.Limits(max_connections=options.at_once)
    async with httpx.AsyncClient(base_url=options.store, timeout=None, limits=limits) as client:

        async def call(task: str) -> None:
            (await client.post("/Agent/run", json=task)).raise_for_status()

        working = asyncio.create_task(agent.serve_async(lambda work: agent.in_loop(call, work.tasks, options.at_once)))
        ended, _ = await asyncio.wait({serving, working}, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # raises what it raised, such as a port in use
    serving.cancel()


if __name__ == "__main__":
    main()
