"""Agents of the OpenAI Agents SDK as durable functions. Needs `tenure[openai-agents]`.

    from agents import Agent
    from tenure.agents import Worker
    from tenure.agents.openai_agents import durable

    agent = Agent(name="support", instructions="Answer the customer.", tools=[refund])
    Worker([durable(agent, effects={"refund": Effect.KEYED})]).run()

agent.py   durable: an agent as a durable function
content.py  the content of an agent's revisions besides the code
runner.py  runs of the SDK within a durable function
messages.py  users' messages in the input of a run
model_errors.py  failures of model requests as exceptions of `openai`
models.py  model requests as recorded, budgeted model calls
refused_images.py  a text in the place of images that the provider refused
one_answer.py  the calls of one answer, which wait together
tools.py   function tools as calls behind the tool service's fence
"""

from tenure.server_packages import extra_packages

with extra_packages("tenure.agents.openai_agents", extra="openai-agents"):
    from tenure.agents.openai_agents.agent import durable

__all__ = ("durable",)
