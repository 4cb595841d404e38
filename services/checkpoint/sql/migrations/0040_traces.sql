-- Traces: spans are projected from the entries and exported, at least once and with the same ids.

-- One row, made when a replica begins to export: up to where it has read the feed of changes, and which replica exports.
-- Whatever a replica writes is refused once another had the turn: the number only grows.
create table trace_feed (
  one        boolean primary key default true check (one),
  feed_id    uuid not null,
  xid        xid8 not null,
  position   bigint not null,
  read_at    timestamptz not null default now(),
  turn       bigint not null default 0,
  turn_until timestamptz not null default '-infinity',
  holder     text not null default ''
);

-- Up to which entry the spans of each task are exported. A task is due while a worker has it, since its steps leave no
-- changes, and from each change on until all is exported.
create table traced_tasks (
  task_id  uuid primary key,
  sequence bigint not null default 0 check (sequence >= 0),
  is_due   boolean not null default true
) with (fillfactor = 70);
create index traced_tasks_due on traced_tasks (task_id) where is_due;
