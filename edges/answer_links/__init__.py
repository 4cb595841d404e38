"""The pages of answer links. See README.md."""
