-- The bytes of the bodies that were appended to the task's ledger since this migration: TENURE_CHECKPOINT_MAX_LEDGER_BYTES
-- limits them. A count from the beginning would read every ledger.

set lock_timeout = '5s';

alter table tasks add column ledger_bytes bigint not null default 0;
