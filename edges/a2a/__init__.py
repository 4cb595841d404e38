"""Agents of A2A. See README.md."""
