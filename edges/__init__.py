"""The edges: protocols, formats and services of others that meet the core, which imports none of them. See README.md."""
