"""The tool web_search. See README.md."""
