"""The checkpoint service: the work ledger in Postgres, and its only writer."""
