-- What happened to tasks, for those who follow all of a tenant: one row for each task whose state, reason or pending ending
-- a transaction changed, written by that transaction. Steps leave none: they are counted in thousands a second.
--
-- `xid` orders the feed. It is at least that of the transaction that wrote the row: so what is below the oldest transaction
-- still running (pg_snapshot_xmin) is complete, and nothing comes in there later. It is also at least that of the task's
-- change before, because transactions get their numbers before they wait for a task's lock: so a task's changes keep their
-- order. `position` tells rows of one xid apart; it is drawn under the task's lock, and so grows with its changes too.
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
-- Pruning takes the oldest of all tenants.
create index changes_oldest on changes (xid, position);

alter table tasks add column change_xid xid8 not null default '0';

-- One row: which feed this is, and up to where it was pruned. Numbers of transactions mean something in one cluster only, so
-- a ledger that was copied to another one begins another feed.
create table change_feed (
  one             boolean primary key default true check (one),
  feed_id         uuid not null default gen_random_uuid(),
  cluster         bigint,
  pruned_xid      xid8 not null default '0',
  pruned_position bigint not null default 0
);
insert into change_feed default values;
