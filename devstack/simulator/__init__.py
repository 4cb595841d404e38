"""A model that needs no key: an HTTP server that speaks the Anthropic Messages API and plays scenarios.

It exists so that the real client runs against something that counts tokens, refuses invalid conversations, fails on
demand and keeps a truthful bill. `python -m devstack.simulator --help` starts one.
"""
