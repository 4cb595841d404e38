"""The protocol as models that a machine searches; see README.md."""
