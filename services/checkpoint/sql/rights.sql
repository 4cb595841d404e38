-- The rights of the checkpoint service's role, given by the owner of the schema after each migration.
grant usage on schema ledger to {role};
grant select, insert, update, delete on all tables in schema ledger to {role};
revoke insert, update, delete on ledger.moves, ledger.migrations from {role};
-- The audit log is append-only for the service, too.
revoke update, delete on ledger.audit_records from {role};
