"""Pydantic AI: a typed output, dynamic instructions, and an effect that a person approves."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, Field
from pydantic_ai import Agent, RunContext

from tenure.agents import Effect, Worker, durable, tool_call


@dataclass
class SupportDependencies:
    customer_id: int


class SupportOutput(BaseModel):
    support_advice: str = Field(description="Advice returned to the customer")
    block_card: bool = Field(description="Whether to block the customer's card")
    risk: int = Field(description="Risk level of query", ge=0, le=10)


support_agent = Agent(
    "anthropic:claude-sonnet-5",
    name="bank",
    deps_type=SupportDependencies,
    output_type=SupportOutput,
    instructions="You are a support agent in our bank, give the customer support and judge the risk of their query.",
    defer_model_check=True,
)


@support_agent.instructions
async def add_customer_name(ctx: RunContext[SupportDependencies]) -> str:
    return f"The customer's number is {ctx.deps.customer_id}"


@support_agent.tool
async def customer_balance(ctx: RunContext[SupportDependencies]) -> str:
    """Returns the customer's current account balance."""
    return f"${ctx.deps.customer_id}.45"


@support_agent.tool_plain(requires_approval=True)
async def block_card(reason: str) -> str:
    """Blocks the customer's card."""
    return f"blocked ({tool_call().idempotency_key}): {reason}"


# This makes it a durable task: tenure submit "I lost my card!" --agent bank --input '{"customer_id": 123}'
bank = durable(
    support_agent,
    effects={"customer_balance": Effect.PURE, "block_card": Effect.KEYED},
    deps=lambda given: SupportDependencies(**given),
)

if __name__ == "__main__":
    Worker([bank]).run()
