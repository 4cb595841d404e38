-- Schedules, webhooks and the links that answer waits.

create table schedules (
  schedule_id     uuid primary key,
  tenant          text not null,
  name            text not null check (name <> ''),
  revision        bigint not null default 1 check (revision >= 1),  -- an update names the revision that it changes
  request_hash    bytea not null,                             -- of the request that created it, to recognise a repeat
  spec            bytea not null,                             -- the TaskSpec of its runs, as sent
  cron            text not null,
  time_zone       text not null,
  overlap_policy  text not null constraint schedules_overlap check (overlap_policy in ('SKIP', 'QUEUE', 'CANCEL_PREVIOUS')),
  catch_up_seconds double precision not null check (catch_up_seconds > 0),
  starts_at       timestamptz,
  ends_at         timestamptz,

  paused          boolean not null default false,
  pause_reason    text not null default '',
  pause_actor     text not null default '',

  -- The first due time without an outcome; null: there is none left. It only grows, also when the clock goes back.
  next_due_at     timestamptz,
  -- When a sweep has work here; null: never, or not while the schedule is paused.
  look_at         timestamptz,

  started_runs    bigint not null default 0 check (started_runs >= 0),
  skipped_runs    bigint not null default 0 check (skipped_runs >= 0),
  failed_runs     bigint not null default 0 check (failed_runs >= 0),
  problem         text not null default '',                   -- why the last attempt to start a run failed
  created_at      timestamptz not null default now(),
  updated_at      timestamptz not null default now(),

  unique (tenant, name),
  constraint paused_is_left_alone check (not paused or look_at is null)
);
create index schedules_due on schedules (look_at) where look_at is not null;

-- The outcomes of due times and triggers: the newest of each schedule, and all that wait or whose task has not ended.
create table schedule_runs (
  schedule_id   uuid not null references schedules on delete cascade,
  source_run_id text not null,
  due_at        timestamptz not null,
  outcome       text not null constraint schedule_runs_outcome check (outcome in ('STARTED', 'WAITING', 'SKIPPED', 'FAILED')),
  reason        text not null default '',
  message       text not null default '',
  due_times     bigint not null default 1 check (due_times >= 1), -- how many due times, up to this one, the row counts
  task_id       uuid,
  -- Whether its task may still run; cleared when a sweep sees that the task has ended.
  active        boolean not null default false,
  recorded_at   timestamptz not null default now(),
  primary key (schedule_id, source_run_id),
  constraint started_iff_task check ((outcome = 'STARTED') = (task_id is not null)),
  constraint active_only_when_started check (not active or outcome = 'STARTED')
);
create index schedule_runs_newest on schedule_runs (schedule_id, recorded_at desc, due_at desc);
create index schedule_runs_waiting on schedule_runs (schedule_id, due_at) where outcome = 'WAITING';
create index schedule_runs_active on schedule_runs (schedule_id) where active;

-- A webhook sends signed requests, messages to Slack, or e-mail. The URL of a Slack webhook is a secret, and is stored as
-- one; an e-mail needs none.
create table webhooks (
  webhook_id        uuid primary key,
  tenant            text not null,
  name              text not null check (name <> ''),
  request_hash      bytea not null,                           -- of the request that created it, to recognise a repeat
  kind              text not null default 'STANDARD' constraint webhooks_kind check (kind in ('STANDARD', 'SLACK', 'EMAIL')),
  url               text not null,
  email_addresses   text[] not null default '{}',
  answer_links      boolean not null default false,
  event_types       text[] not null,
  filter            bytea not null,                           -- the TaskFilter, as sent
  secret            bytea not null,
  old_secret        bytea,
  old_secret_until  timestamptz,

  paused            boolean not null default false,
  pause_code        text not null default '',
  pause_reason      text not null default '',
  pause_actor       text not null default '',

  -- The position in the feed of changes. It advances in the transaction that adds the deliveries of these changes.
  feed_id           uuid not null,
  xid               xid8 not null,
  position          bigint not null,
  read_at           timestamptz not null default now(),

  -- The row lease of the replica that sends. Its writes are refused after another replica took it: the number only grows.
  lease_number      bigint not null default 0,
  leased_until      timestamptz not null default '-infinity',
  -- No delivery before this time: the endpoint asked for a pause.
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
  constraint webhook_target_of_kind check ((kind = 'EMAIL') = (url = '')
                                           and (kind = 'EMAIL') = (cardinality(email_addresses) > 0)),
  constraint webhook_secret_of_kind check ((kind = 'EMAIL') = (octet_length(secret) = 0)),
  constraint old_secret_has_its_end check ((old_secret is null) = (old_secret_until is null)),
  constraint paused_iff_code check (paused = (pause_code <> ''))
) with (fillfactor = 70);

-- The pending deliveries, the dead ones, and the newest of the delivered ones. The ordinal is drawn under the lock of the
-- webhook's row: it is the order of a task's deliveries. A pending delivery has a next attempt when it is the first of its
-- line.
create table webhook_deliveries (
  webhook_id      uuid not null references webhooks on delete cascade,
  ordinal         bigint generated always as identity,
  delivery_id     uuid not null unique,
  event_type      text not null,
  line            text not null,                              -- the task; an event without a task is a line of its own
  sequence        bigint not null,
  state           text not null default 'PENDING'
                  constraint webhook_deliveries_state check (state in ('PENDING', 'DELIVERED', 'DEAD')),
  body            text not null,                              -- '' after the delivery
  attempts        integer not null default 0 check (attempts >= 0),
  next_attempt_at timestamptz,
  -- Why it waits although no attempt failed.
  hold_reason     text not null default ''
                  constraint webhook_deliveries_hold_reason check (hold_reason in ('', 'TENANT_QUOTA')),
  sent_under_lease bigint,                                    -- a replica is sending it while this lease lasts
  -- The addresses that accepted an e-mail: the next attempt sends to the others only.
  accepted_addresses text[] not null default '{}',
  last_attempt_at timestamptz,
  last_status     integer not null default 0,
  last_error      text not null default '',
  created_at      timestamptz not null default now(),
  ended_at        timestamptz,
  primary key (webhook_id, ordinal),
  constraint ended_iff_over check ((ended_at is not null) = (state <> 'PENDING')),
  constraint only_pending_is_sent check (state = 'PENDING' or (next_attempt_at is null and sent_under_lease is null))
);
-- One delivery of each line at a time: this keeps the order of a task.
create unique index webhook_deliveries_next on webhook_deliveries (webhook_id, line) where next_attempt_at is not null;
create index webhook_deliveries_due on webhook_deliveries (webhook_id, next_attempt_at) where next_attempt_at is not null;
create index webhook_deliveries_line on webhook_deliveries (webhook_id, line, ordinal) where state = 'PENDING';
create index webhook_deliveries_by_state on webhook_deliveries (webhook_id, state, ordinal);
create index webhook_deliveries_held on webhook_deliveries (webhook_id) where hold_reason <> '';

-- Changes that a webhook can no longer read.
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

-- The people who may answer waits.
create table approver_groups (
  tenant     text not null check (tenant ~ '^[a-z0-9-]{1,63}$'),
  name       text not null check (name ~ '^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$'),
  members    text[] not null check (cardinality(members) between 1 and 200),
  actor      text not null,
  updated_at timestamptz not null default now(),
  primary key (tenant, name)
);

-- The links that answer waits. Only a digest of a link is stored: its token has 256 random bits and needs no salt. The
-- wait in the task's row decides whether a link is still valid.
create table answer_links (
  link_id    text primary key check (link_id ~ '^[a-z0-9]{12}$'),
  digest     bytea not null check (octet_length(digest) = 32),
  tenant     text not null,
  task_id    uuid not null,
  wait_id    text not null,
  webhook_id uuid not null references webhooks on delete cascade,
  addressee  text not null check (addressee <> ''),
  created_at timestamptz not null default now(),
  expires_at timestamptz not null
);
create index answer_links_by_end on answer_links (expires_at);
create index answer_links_of_webhook on answer_links (webhook_id);
