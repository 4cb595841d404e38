"""The tool http_fetch. See README.md."""
