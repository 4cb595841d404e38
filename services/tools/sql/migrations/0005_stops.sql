-- A copy of the ledger's stops: see tenure/domain/stops.py. Each accept and each start compares the epoch.

create table stop_epoch (
  is_only boolean primary key default true check (is_only),
  epoch   bigint not null default 0 check (epoch >= 0)
);
insert into stop_epoch default values;

create table stops (
  tenant     text        not null,
  agent      text        not null,
  queue      text        not null,
  tool       text        not null,
  reason     text        not null,
  actor      text        not null,
  stopped_at timestamptz not null,
  epoch      bigint      not null check (epoch >= 1),
  primary key (tenant, agent, queue, tool)
);
