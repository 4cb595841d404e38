-- Who may answer waits, and the links that answer them. Of a link only a digest is stored: its token has 256 random bits,
-- so that no salt is needed. The wait in the task's row decides whether a link still answers anything.
create table approver_groups (
  tenant     text not null check (tenant ~ '^[a-z0-9-]{1,63}$'),
  name       text not null check (name ~ '^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$'),
  members    text[] not null check (cardinality(members) between 1 and 200),
  actor      text not null,
  updated_at timestamptz not null default now(),
  primary key (tenant, name)
);

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

alter table webhooks add column answer_links boolean not null default false;
