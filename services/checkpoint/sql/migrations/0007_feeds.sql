-- Feeds: changes of tasks for readers outside, notices within a tree, events for waits, and traces.

-- One row for each task whose state, reason or pending ending a transaction changed, written by that transaction. A reader
-- follows all tasks of a tenant. Steps, of which there are thousands a second, leave no rows.
--
-- `xid` orders the feed. It is at least the number of the transaction that wrote the row: so the part below the oldest
-- running transaction (pg_snapshot_xmin) is complete, and no row is added there later. It is also at least the xid of the
-- task's change before, because transactions get their numbers before they wait for a task's lock: so the changes of a task
-- keep their order. `position` separates rows of one xid; it is drawn under the task's lock, so it grows with the changes of
-- the task, too.
create table changes (
  xid              xid8 not null,
  position         bigint generated always as identity,
  tenant           text not null,
  task_id          uuid not null,
  sequence         bigint not null check (sequence >= 1),
  state            text not null,
  reason           text not null,
  cancel_requested boolean not null,
  changed_at       timestamptz not null,
  primary key (tenant, xid, position)
);
-- Pruning takes the oldest changes of all tenants.
create index changes_oldest on changes (xid, position);

-- One row: the identity of the feed, and the position up to which it was pruned. Numbers of transactions are valid within
-- one cluster, so a ledger that was copied to another cluster begins a new feed. The rows of the old feed are those with a
-- position of at most `leftover_position` (0: none). They are not read, and are deleted in batches in the order of the
-- index; the place of the last batch is kept. To delete them all when a service starts took longer than a statement may.
create table change_feed (
  one             boolean primary key default true check (one),
  feed_id         uuid not null default gen_random_uuid(),
  cluster         bigint,
  pruned_xid      xid8 not null default '0',
  pruned_position bigint not null default 0,
  leftover_position         bigint not null default 0,
  leftover_reached_xid      xid8 not null default '0',
  leftover_reached_position bigint not null default 0
);
insert into change_feed default values;

-- Pending notices within a tree: a sub-agent ended, or a parent moved. The move itself writes a notice, and the sweep that
-- acts on it deletes it. So no transaction has to lock parents and sub-agents at once.
create table family_news (
  position       bigint generated always as identity primary key,
  parent_task_id uuid not null,
  parent_moved   boolean not null                             -- otherwise one of its sub-agents ended
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);

-- Events from outside, by name: each is taken by one wait, the oldest event first, or deleted after some time.
create table signals (
  tenant         text not null,
  correlation_id text not null,
  request_id     text not null,
  position       bigint generated always as identity,
  hash           bytea not null,
  actor          text not null,
  payload        bytea not null,                              -- UTF-8 that may hold \u0000
  received_at    timestamptz not null default now(),
  taken_by       uuid,
  primary key (tenant, correlation_id, request_id)
);
create index signals_kept on signals (tenant, correlation_id, position) where taken_by is null;
create index signals_oldest on signals (received_at);

-- One row, made when a replica begins to export spans: the position in the feed of changes, and the replica that exports.
-- Every write of a replica is refused after another replica took the lease: the number only grows.
create table trace_feed (
  one          boolean primary key default true check (one),
  feed_id      uuid not null,
  xid          xid8 not null,
  position     bigint not null,
  read_at      timestamptz not null default now(),
  lease_number bigint not null default 0,
  leased_until timestamptz not null default '-infinity',
  holder       text not null default ''
);

-- The sequence up to which the spans of each task are exported, at least once and with the same ids. A task is due while a
-- worker holds it, since its steps leave no changes, and from each change on until all is exported.
create table traced_tasks (
  task_id  uuid primary key,
  sequence bigint not null default 0 check (sequence >= 0),
  is_due   boolean not null default true
) with (fillfactor = 70);
create index traced_tasks_due on traced_tasks (task_id) where is_due;
