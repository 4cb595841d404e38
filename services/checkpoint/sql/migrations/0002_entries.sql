-- The entries of tasks, and the rows that come and go with them.

-- The append-only sequence of facts of each task. `kind` is the field number of the body in EntryBody's oneof.
create table entries (
  task_id     uuid not null,
  sequence    bigint not null check (sequence >= 1),
  tenant      text not null,
  epoch       bigint not null,
  claim_id    text not null,
  attempt     int not null,
  step        int not null,
  kind        smallint not null check (kind >= 1),
  actor       text not null,
  recorded_at timestamptz not null,
  body        bytea not null,
  primary key (task_id, sequence)
) partition by hash (task_id);

-- The default storage compresses every body: measured, 60 % of a commit's time. Each partition has its own setting.
do $$ begin
  for i in 0..15 loop
    execute format('create table entries_%s partition of entries for values with (modulus 16, remainder %s)', i, i);
    execute format('alter table entries_%s alter body set storage external', i);
  end loop;
end $$;

-- Entries by authors other than the owner, by the id of their request: a repeat is recognised.
create table foreign_requests (
  task_id    uuid not null,
  request_id text not null,
  tenant     text not null,
  hash       bytea not null,
  sequence   bigint not null,
  primary key (task_id, request_id)
);

-- Writes that a fence refused. The statement that inserts limits their number for each task.
create table refusals (
  refusal_id      bigint generated always as identity primary key,
  task_id         uuid not null,
  tenant          text not null,
  method          text not null,
  presented_epoch bigint not null,
  current_epoch   bigint not null,
  holder          text not null,
  refused_at      timestamptz not null
);
create index refusals_task on refusals (task_id, refusal_id desc);

-- The outputs of tasks. The intent of a call of record_output adds a row, and the outcome completes it: so the number of
-- a task's rows is limited before the call is made. `body` is a TaskOutput; filters compare the columns before it.
create table task_outputs (
  task_id         uuid not null,
  call_id         text not null,
  tenant          text not null,
  task_created_at timestamptz not null,
  kind            text collate "C" not null default '',
  uri             text collate "C" not null default '',
  body            bytea not null default '',
  primary key (task_id, call_id),
  constraint output_is_whole check ((kind = '') = (uri = '') and (kind = '') = (body = ''))
);
create index task_outputs_kind on task_outputs (tenant, kind, task_created_at desc, task_id desc) where kind <> '';
create index task_outputs_uri on task_outputs (tenant, uri) where kind <> '';

-- Whether a task has an output of this kind and with such a URI; with '' and '' every task has.
create function has_output(of_task uuid, of_kind text, uri_from text, uri_until text) returns boolean
  language sql stable set search_path = ledger, pg_temp as $$
  select (of_kind = '' and uri_until = '') or exists (
           select from task_outputs o
            where o.task_id = of_task and o.kind <> '' and (of_kind = '' or o.kind = of_kind)
              and (uri_until = '' or (o.uri >= uri_from and o.uri < uri_until)))
$$;

-- The pruned tasks: their rows and entries go, their bills stay. The row of a pruned task is also its list of remaining
-- work: entries go in bounded batches after the task itself, and the tool service has to forget the task.
create table prunings (
  task_id       uuid primary key,
  tenant        text not null,
  root_task_id  uuid not null,
  -- The last grant of the task: no token of it was or will be signed above this epoch. 0: it was never granted.
  epoch         bigint not null check (epoch >= 0),
  claim_id      text not null,
  ended_at      timestamptz not null,
  pruned_at     timestamptz not null default now(),
  actor         text not null,
  reason        text not null,
  entries_left  bigint not null check (entries_left >= 0),    -- entries with a higher sequence are gone
  cleared_at    timestamptz,                                  -- since then the ledger has only its bills
  forgotten_at  timestamptz,                                  -- since then the tool service has only a closed fence
  offered_until timestamptz,                                  -- no offers to other coordinators before this time
  constraint cleared_iff_nothing_left check ((cleared_at is not null) = (entries_left = 0))
) with (fillfactor = 80);
create index prunings_to_clear on prunings (pruned_at) where cleared_at is null;
create index prunings_to_forget on prunings (pruned_at) where forgotten_at is null;

-- The id of each fork that is being made, so that its files can be put in place before it exists. The transaction that
-- makes the fork deletes the row. If the fork is not made in time, the tool service has to forget the id.
create table prepared_forks (
  task_id      uuid primary key,
  tenant       text not null,
  request_id   text not null,
  request_hash bytea not null,
  prepared_at  timestamptz not null default clock_timestamp(),
  unique (tenant, request_id, request_hash)
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000);
create index prepared_forks_given_up on prepared_forks (prepared_at);
