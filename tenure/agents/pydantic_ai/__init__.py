"""Agents of Pydantic AI as durable functions, through its interface for durable execution (`pydantic_ai.durable_exec`).

agent.py         Agent and durable: an agent as a durable function
content.py       the content of an agent's revisions besides the code
durability.py    the capability that routes an agent's operations, and its backend
model_errors.py  failures of model requests as exceptions of Pydantic AI
model_calls.py   model requests as recorded, budgeted model calls
prompts.py       an upper bound of a request's tokens
refused_images.py  a text in the place of images that the provider refused
tool_calls.py    tool calls as calls behind the tool service's fence
undo_tools.py    tools of an agent that undos call, without a run of the agent
"""
