"""Agents by name: their immutable revisions, and the pin of a new task.

rows.py       an agent and its revisions in the database
pinning.py    the revision that a new task is pinned to
servicer.py   AgentService
"""
