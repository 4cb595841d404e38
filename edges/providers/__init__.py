"""Tool providers. See README.md."""
