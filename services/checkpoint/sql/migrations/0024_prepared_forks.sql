-- Forks to come: the id that each will have, so that its files can be put in place before it exists. The row goes when the
-- fork is made, in one transaction with it; or when none takes the id in time, and then the tools are told to forget it.
create table prepared_forks (
  task_id      uuid primary key,
  tenant       text not null,
  request_id   text not null,
  request_hash bytea not null,
  prepared_at  timestamptz not null default clock_timestamp(),
  unique (tenant, request_id, request_hash)
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
create index prepared_forks_given_up on prepared_forks (prepared_at);
