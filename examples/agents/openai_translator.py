"""OpenAI Agents SDK: agents as tools. All are durable and share the budget of the task."""

from __future__ import annotations

from agents import Agent

from tenure.agents import Worker
from tenure.agents.openai_agents import durable

spanish_agent = Agent(name="spanish_agent", instructions="You translate the user's message to Spanish")
french_agent = Agent(name="french_agent", instructions="You translate the user's message to French")
orchestrator_agent = Agent(
    name="orchestrator_agent",
    instructions="You use the tools given to you to translate. You never translate on your own.",
    tools=[
        spanish_agent.as_tool(
            tool_name="translate_to_spanish", tool_description="Translate the user's message to Spanish"
        ),
        french_agent.as_tool(
            tool_name="translate_to_french", tool_description="Translate the user's message to French"
        ),
    ],
)

# This makes it a durable task: tenure submit "Say 'Hello' in Spanish and French." --agent translator
translator = durable(orchestrator_agent, name="translator")

if __name__ == "__main__":
    Worker([translator]).run()
