"""The pages of the gateway for browsers. See README.md."""
