-- Epochs: the fences of tasks and of named resources.

-- One row: the number of etcd's lives so far, and the highest epoch that was ever registered.
create table epochs (
  one           boolean primary key default true check (one),
  generation    bigint not null check (generation between 1 and 8388607),
  highest_epoch bigint not null default 0 check (highest_epoch >= 0)
);
insert into epochs (generation) values (1);

-- The newest grant of each named resource (LeaseService): with it the epochs of the resource grow also after a restore of
-- etcd. One small row for each name; rows are never deleted.
create table lease_grants (
  tenant          text   not null,
  resource        text   not null,
  epoch           bigint not null check (epoch > 0),
  claim_id        text   not null,
  holder          text   not null,
  previous_epoch  bigint not null check (previous_epoch >= 0 and previous_epoch < epoch),
  request_id      text   not null,
  -- Why the lease before it ended.
  reason          text   not null,
  message         text   not null,
  granted_at      timestamptz not null default now(),
  -- Why the holder released it; '' while it holds, and after it ran out.
  release_reason  text   not null default '',
  release_message text   not null default '',
  released_at     timestamptz,
  primary key (tenant, resource),
  check ((release_reason = '') = (released_at is null))
);

create function refuse_older_epoch() returns trigger language plpgsql as $$
begin
  raise exception 'generations and epochs only grow' using errcode = 'check_violation';
end $$;
create trigger epochs_only_grow before update on epochs for each row
  when (new.generation < old.generation or new.highest_epoch < old.highest_epoch) execute function refuse_older_epoch();
create trigger epochs_stay before delete on epochs for each row execute function refuse_older_epoch();
create trigger lease_epochs_only_grow before update on lease_grants for each row
  when (new.epoch < old.epoch or (new.epoch = old.epoch and new.claim_id <> old.claim_id))
  execute function refuse_older_epoch();
create trigger lease_epochs_stay before delete on lease_grants for each row execute function refuse_older_epoch();
