"""OpenAI Agents SDK: handoffs, and an effect that a person approves."""

from __future__ import annotations

from agents import Agent, function_tool

from tenure.agents import Effect, Worker, tool_call
from tenure.agents.openai_agents import durable


@function_tool(needs_approval=True)
async def refund(order: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} cents of order {order} ({tool_call().idempotency_key})"


refund_agent = Agent(name="Refund agent", instructions="You refund orders.", tools=[refund])
faq_agent = Agent(name="FAQ agent", instructions="You answer questions about the airline.")
triage_agent = Agent(
    name="Triage agent",
    instructions="Hand off to the agent that can help the customer.",
    handoffs=[refund_agent, faq_agent],
)

# This makes it a durable task: tenure submit "I want my money back for order 7" --agent triage
triage = durable(triage_agent, name="triage", effects={"refund": Effect.KEYED})

if __name__ == "__main__":
    Worker([triage]).run()
