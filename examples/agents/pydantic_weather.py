"""Pydantic AI: an agent with two tools that only read, and dependencies."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext

from tenure.agents import Effect, Worker, durable


@dataclass
class Deps:
    unit: str


class LatLng(BaseModel):
    lat: float
    lng: float


weather_agent = Agent(
    "anthropic:claude-sonnet-5",
    name="weather",
    instructions="Be concise, reply with one sentence.",
    deps_type=Deps,
    retries=2,
    defer_model_check=True,
)


@weather_agent.tool_plain
async def get_lat_lng(location_description: str) -> LatLng:
    """Get the latitude and longitude of a location."""
    return LatLng(lat=51.5, lng=float(-len(location_description)))


@weather_agent.tool
async def get_weather(ctx: RunContext[Deps], lat: float, lng: float) -> dict[str, str]:
    """Get the weather at a location."""
    return {"temperature": f"21 {ctx.deps.unit}", "description": f"Sunny at {lat}, {lng}"}


# This makes it a durable task: tenure submit "What is the weather in London?" --agent weather --input '{"unit": "°C"}'
weather = durable(
    weather_agent,
    effects={"get_lat_lng": Effect.PURE, "get_weather": Effect.PURE},
    deps=lambda given: Deps(**(given or {"unit": "°C"})),
)

if __name__ == "__main__":
    Worker([weather]).run()
