"""Tenure as a server of the Model Context Protocol. See README.md."""
