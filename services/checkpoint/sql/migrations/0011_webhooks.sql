-- Webhooks (WebhookService): where events are sent, and what is to be sent there.
create table webhooks (
  webhook_id        uuid primary key,
  tenant            text not null,
  name              text not null check (name <> ''),
  request_hash      bytea not null,                           -- of the request that created it, to know a repeat
  url               text not null,
  event_types       text[] not null,
  filter            bytea not null,                           -- the TaskFilter, as sent
  secret            bytea not null,
  old_secret        bytea,
  old_secret_until  timestamptz,

  paused            boolean not null default false,
  pause_code        text not null default '',
  pause_reason      text not null default '',
  pause_actor       text not null default '',

  -- Up to where it has read the feed of changes. It moves with the deliveries that come of it, in one transaction.
  feed_id           uuid not null,
  xid               xid8 not null,
  position          bigint not null,
  read_at           timestamptz not null default now(),

  -- One replica at a time has the turn. Whatever it writes is refused once another had it: the number only grows.
  turn              bigint not null default 0,
  turn_until        timestamptz not null default '-infinity',
  -- Nothing is sent before: the endpoint asked for it.
  hold_until        timestamptz not null default '-infinity',

  pending           bigint not null default 0 check (pending >= 0),
  dead              bigint not null default 0 check (dead >= 0),
  delivered         bigint not null default 0 check (delivered >= 0),
  last_delivered_at timestamptz,
  last_failed_at    timestamptz,
  problem           text not null default '',
  created_at        timestamptz not null default now(),
  updated_at        timestamptz not null default now(),

  unique (tenant, name),
  constraint old_secret_has_its_end check ((old_secret is null) = (old_secret_until is null)),
  constraint paused_iff_code check (paused = (pause_code <> ''))
) with (fillfactor = 70);

-- What is to be sent, what was given up, and the newest of what was received. The ordinal is drawn under the lock of the
-- webhook's row: it is the order of a task's deliveries. A pending delivery has a time when it is next in its task's line.
create table webhook_deliveries (
  webhook_id      uuid not null references webhooks on delete cascade,
  ordinal         bigint generated always as identity,
  delivery_id     uuid not null unique,
  event_type      text not null,
  line            text not null,                              -- the task; what is of no task is a line by itself
  sequence        bigint not null,
  state           text not null default 'PENDING'
                  constraint webhook_deliveries_state check (state in ('PENDING', 'DELIVERED', 'DEAD')),
  body            text not null,                              -- empty once received
  attempts        integer not null default 0 check (attempts >= 0),
  next_attempt_at timestamptz,
  sent_in_turn    bigint,                                     -- it is on its way, as long as that turn lasts
  last_attempt_at timestamptz,
  last_status     integer not null default 0,
  last_error      text not null default '',
  created_at      timestamptz not null default now(),
  ended_at        timestamptz,
  primary key (webhook_id, ordinal),
  constraint ended_iff_over check ((ended_at is not null) = (state <> 'PENDING')),
  constraint only_pending_is_sent check (state = 'PENDING' or (next_attempt_at is null and sent_in_turn is null))
);
-- One of each line at a time: what makes the order of a task.
create unique index webhook_deliveries_next on webhook_deliveries (webhook_id, line) where next_attempt_at is not null;
create index webhook_deliveries_due on webhook_deliveries (webhook_id, next_attempt_at) where next_attempt_at is not null;
create index webhook_deliveries_line on webhook_deliveries (webhook_id, line, ordinal) where state = 'PENDING';
create index webhook_deliveries_by_state on webhook_deliveries (webhook_id, state, ordinal);

-- Changes that a webhook could not read any more.
create table webhook_gaps (
  webhook_id  uuid not null references webhooks on delete cascade,
  found_at    timestamptz not null default clock_timestamp(),
  reason      text not null constraint webhook_gaps_reason check (reason in ('EXPIRED', 'OTHER_FEED', 'PUT_BACK')),
  from_at     timestamptz not null,
  to_at       timestamptz not null,
  from_cursor text not null,
  to_cursor   text not null,
  primary key (webhook_id, found_at)
);
