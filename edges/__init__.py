"""The edges: protocols and formats of others that meet the core, which imports none of them. See README.md."""
