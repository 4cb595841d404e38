-- The rights of the checkpoint service's role, given by the owner of the schema after each migration.
grant usage on schema ledger to {role};
grant select, insert, update, delete on all tables in schema ledger to {role};
revoke insert, update, delete on ledger.moves, ledger.migrations from {role};
-- The audit log is append-only for the service, too.
revoke update, delete on ledger.audit_records from {role};
-- Entries are written through their table, whose trigger keeps their rules, and not through its partitions.
revoke insert, update, delete on
  ledger.entries_0, ledger.entries_1, ledger.entries_2, ledger.entries_3, ledger.entries_4, ledger.entries_5,
  ledger.entries_6, ledger.entries_7, ledger.entries_8, ledger.entries_9, ledger.entries_10, ledger.entries_11,
  ledger.entries_12, ledger.entries_13, ledger.entries_14, ledger.entries_15 from {role};
