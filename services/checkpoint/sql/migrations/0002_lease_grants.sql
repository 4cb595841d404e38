-- The last grant of each named resource (LeaseService): what keeps its epochs growing when etcd goes back. One small row
-- a name, for ever.
create table lease_grants (
  tenant          text   not null,
  resource        text   not null,
  epoch           bigint not null check (epoch > 0),
  claim_id        text   not null,
  holder          text   not null,
  previous_epoch  bigint not null check (previous_epoch >= 0 and previous_epoch < epoch),
  request_id      text   not null,
  -- How the lease before ended, and in whose words.
  reason          text   not null,
  message         text   not null,
  granted_at      timestamptz not null default now(),
  -- How this one was given back; '' while it was not, or ran out.
  release_reason  text   not null default '',
  release_message text   not null default '',
  released_at     timestamptz,
  primary key (tenant, resource),
  check ((release_reason = '') = (released_at is null))
);
