-- Stops of operators: see tenure/domain/stops.py. The ledger is their authority; the tool service has a copy.

create table stop_epoch (
  is_only boolean primary key default true check (is_only),
  -- Grows with each stop and each end of a stop.
  epoch   bigint not null default 0 check (epoch >= 0)
);
insert into stop_epoch default values;

create table stops (
  -- The selectors; '': everything.
  tenant     text        not null,
  agent      text        not null,
  queue      text        not null,
  tool       text        not null,
  reason     text        not null,
  actor      text        not null,
  stopped_at timestamptz not null default clock_timestamp(),
  epoch      bigint      not null check (epoch >= 1),
  primary key (tenant, agent, queue, tool)
);

-- The processes that keep stops in memory, and the epoch that each one keeps to.
create table stop_readers (
  reader  text        primary key check (length(reader) between 1 and 200),
  epoch   bigint      not null,
  seen_at timestamptz not null default clock_timestamp()
);
