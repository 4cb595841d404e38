"""OpenAI Agents SDK: an agent with a tool and a typed output."""

from __future__ import annotations

from agents import Agent, function_tool
from pydantic import BaseModel, Field

from tenure.agents import Effect, Worker
from tenure.agents.openai_agents import durable


class Weather(BaseModel):
    city: str = Field(description="The city name")
    temperature_range: str = Field(description="The temperature range in Celsius")
    conditions: str = Field(description="The weather conditions")


@function_tool
def get_weather(city: str) -> Weather:
    """Get the current weather information for a specified city."""
    return Weather(city=city, temperature_range="14-20C", conditions="Sunny with wind.")


agent = Agent(name="Hello world", instructions="You are a helpful agent.", tools=[get_weather])

# This makes it a durable task: tenure submit "What's the weather in Tokyo?" --agent hello-world
hello = durable(agent, name="hello-world", effects={"get_weather": Effect.PURE})

if __name__ == "__main__":
    Worker([hello]).run()
