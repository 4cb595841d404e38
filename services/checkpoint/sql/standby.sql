-- A hot standby of the ledger's database, for reads.

-- name: primary_position
-- The end of the log that is on disk, and the time: every commit that was acknowledged before has its record below. The
-- time is that of the statement's begin, because the clock may be read after the log. The name of a segment begins with
-- the timeline that the server writes.
select (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint, now(),
       (select system_identifier from pg_control_system()),
       ('x' || left(pg_walfile_name(pg_current_wal_flush_lsn()), 8))::bit(32)::bigint;

-- name: standby_position
-- How far the standby has applied the log; null for a server that is not a standby. The timeline is that of its newest
-- restart point, so it is never ahead of what the standby has applied.
select (case when pg_is_in_recovery() then pg_last_wal_replay_lsn() end - '0/0'::pg_lsn)::bigint,
       (select system_identifier from pg_control_system()),
       (select timeline_id::bigint from pg_control_checkpoint());
