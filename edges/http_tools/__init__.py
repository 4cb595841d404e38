"""HTTP tools. See README.md."""
