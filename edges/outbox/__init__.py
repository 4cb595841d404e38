"""The outbox: submits in transactions of the caller's own Postgres. See README.md."""
