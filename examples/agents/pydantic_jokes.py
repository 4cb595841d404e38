"""Pydantic AI: an agent that delegates to another one. Both are durable and share the budget of the task."""

from __future__ import annotations

from pydantic_ai import Agent, RunContext

from tenure.agents import Worker, durable

joke_selection_agent = Agent(
    "anthropic:claude-sonnet-5",
    name="jokes",
    instructions="Use the `joke_factory` to generate some jokes, then choose the best. Return just one.",
    defer_model_check=True,
)
joke_generation_agent = Agent(
    "anthropic:claude-haiku-4-5", name="joke-writer", output_type=list[str], defer_model_check=True
)


@joke_selection_agent.tool
async def joke_factory(ctx: RunContext[object], count: int) -> list[str]:
    """Generates jokes."""
    r = await joke_generation_agent.run(f"Please generate {count} jokes.", usage=ctx.usage)
    return r.output


# This makes it a durable task: tenure submit "Tell me a joke." --agent jokes
durable(joke_generation_agent)
jokes = durable(joke_selection_agent, effects={"joke_factory": None})

if __name__ == "__main__":
    Worker([jokes]).run()
