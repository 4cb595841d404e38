"""The model simulator: an HTTP server that speaks the APIs of two model vendors and plays scenarios. It needs
no API key.

The vendors are Anthropic (Messages) and OpenAI (Chat Completions, Responses); all play the same scenarios.

With it the real client runs against a server that counts tokens, refuses invalid conversations, fails on demand and
keeps an exact bill. `python -m devstack.simulator --help` starts one.

__main__.py            the simulator as a process
simulator.py           the routes, and the control interface for tests (/_sim/…)
http_server.py         an HTTP/1.1 server, and the provider's error bodies
messages_endpoint.py   /v1/messages and /v1/messages/count_tokens
chat_endpoint.py       /v1/chat/completions, in front of the same engine
responses_endpoint.py  /v1/responses, in front of chat_endpoint.py
request_checks.py      refuses requests that the provider would refuse, with its messages
tool_checks.py         refuses definitions of tools that the provider would refuse
scenario.py            scenario files, turns, tool calls, faults; which scenario a model name plays
own_tools.py           the scenario of an agent whose tools no written scenario calls
templates.py           references such as {{goal}} in scenario texts; conversations with a summary
rate_limits.py         the provider's rate limits, with the headers of both vendors
tokens.py              the token count, and the prompt cache
delivery.py            composes an answer and sends it, with its latency and its fault
call_log.py            the bill: one JSON line per call
scenarios/             the shipped scenarios, one YAML file each
"""
