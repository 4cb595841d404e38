-- A task that the ledger has pruned: its records and files go, its fence stays for ever, closed at the last claim there was.
alter table fences add column forgotten_at timestamptz;
