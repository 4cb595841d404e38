-- Tenants: their quotas, their clients' keys, their agents; and the audit log.

-- The quotas of each tenant. The row of '', which is not a valid tenant, has the defaults of the installation, as the
-- replica had them that started last.
create table tenants (
  tenant                 text primary key,
  own                    text[] not null default '{}',        -- the kinds of quotas of its own; the others are defaults
  revision               bigint not null default 0 check (revision >= 0),
  actor                  text not null default '',
  reason                 text not null default '',

  -- The valid quota: its own, or the installation's default; null: no limit.
  max_running_tasks      bigint check (max_running_tasks >= 0),
  max_submits_per_minute bigint check (max_submits_per_minute >= 0),
  max_tokens_per_hour    bigint check (max_tokens_per_hour >= 0),
  max_nano_usd_per_day   bigint check (max_nano_usd_per_day >= 0),
  -- Recipients of e-mail. A delivery beyond the quota waits.
  max_emails_per_hour    bigint default 200 check (max_emails_per_hour = 0 or max_emails_per_hour >= 20),
  running_policy         text not null default 'DELAY',
  submits_policy         text not null default 'REFUSE',
  tokens_policy          text not null default 'DELAY',
  money_policy           text not null default 'REFUSE',

  created_at             timestamptz not null default now(),
  updated_at             timestamptz,
  constraint tenants_own check (
    own <@ array['RUNNING_TASKS', 'SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY', 'EMAILS_PER_HOUR']),
  constraint tenants_policies check (
    array[running_policy, submits_policy, tokens_policy, money_policy] <@ array['REFUSE', 'DELAY'])
);
-- The tenants whose model calls a replica has to observe.
create index tenants_limited on tenants (tenant) where max_tokens_per_hour is not null or max_nano_usd_per_day is not null;

insert into tenants (tenant) values ('');

-- The use of a sliding window, in the buckets of a ring: a bucket that returns starts at 0. The transaction that settles a
-- call writes its use, for all tenants: so a new limit counts earlier use. Shards keep the writers of one tenant apart.
create table tenant_windows (
  tenant text not null,
  quota  text not null constraint tenant_windows_quota check (
           quota in ('SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY', 'EMAILS_PER_HOUR')),
  slot   int not null,
  shard  int not null,
  bucket bigint not null,
  amount bigint not null check (amount >= 0),
  primary key (tenant, quota, slot, shard)
) with (fillfactor = 50);

-- When each soft limit was last reached: one warning in each window.
create table tenant_warnings (
  tenant    text not null,
  quota     text not null constraint tenant_warnings_quota check (
              quota in ('RUNNING_TASKS', 'SUBMITS_PER_MINUTE', 'TOKENS_PER_HOUR', 'MONEY_PER_DAY', 'EMAILS_PER_HOUR')),
  warned_at timestamptz not null,
  primary key (tenant, quota)
) with (fillfactor = 50);

-- The identities of clients. Only a digest of a key is stored: a key has 256 random bits and needs no salt. A revoked key
-- stays, so that no other key gets its id.
create table api_keys (
  key_id      text primary key check (key_id ~ '^[a-z0-9]{12}$'),
  tenant      text not null check (tenant ~ '^[a-z0-9-]{0,63}$'),  -- '': every tenant
  name        text not null check (length(name) between 1 and 200),
  permissions text[] not null check (
    cardinality(permissions) between 1 and 5
    and permissions <@ array['READ', 'WRITE', 'APPROVE', 'TENANT_ADMIN', 'OPERATE']
  ),
  digest      bytea not null check (octet_length(digest) = 32),
  creator     text not null,
  created_at  timestamptz not null default now(),
  expires_at  timestamptz,
  revoked_at  timestamptz,
  revoker     text not null default '',
  check (tenant <> '' or 'OPERATE' = any (permissions))
);
create index api_keys_of_tenant on api_keys (tenant, created_at desc, key_id desc);
create index api_keys_of_all on api_keys (created_at desc, key_id desc);

-- Agents by name, and their revisions. A revision never changes, and a task keeps its revision. The row of an agent says
-- which share of new tasks each revision gets.
create table agents (
  tenant            text not null,
  name              text not null check (name ~ '^[a-zA-Z0-9][a-zA-Z0-9._-]{0,54}$'),
  current_revision  integer not null default 0,
  ramp_revision     integer not null default 0,
  ramp_basis_points integer not null default 0,
  newest_revision   integer not null default 0,
  created_at        timestamptz not null default now(),
  updated_at        timestamptz not null default now(),
  actor             text not null,
  reason            text not null default '',
  primary key (tenant, name),
  check (current_revision between 0 and newest_revision and ramp_revision between 0 and newest_revision),
  check ((ramp_revision = 0) = (ramp_basis_points = 0) and ramp_basis_points between 0 and 9999),
  check (ramp_revision = 0 or ramp_revision <> current_revision)
);

create table agent_revisions (
  tenant     text not null,
  name       text not null,
  revision   integer not null check (revision >= 1),
  digest     text not null check (digest ~ '^[0-9a-f]{64}$'),
  definition bytea not null,
  created_at timestamptz not null default now(),
  creator    text not null,
  retired_at timestamptz,
  primary key (tenant, name, revision),
  unique (tenant, name, digest),
  foreign key (tenant, name) references agents
);

create table agent_builds (
  tenant        text not null,
  name          text not null,
  revision      integer not null,
  build         text not null check (length(build) between 1 and 128),
  registered_at timestamptz not null default now(),
  primary key (tenant, name, revision, build),
  foreign key (tenant, name, revision) references agent_revisions
);

create function refuse_change_of_a_revision() returns trigger language plpgsql as $$
begin
  raise exception 'a revision of an agent cannot change' using errcode = 'check_violation';
end $$;
create trigger agent_revisions_stay before update on agent_revisions for each row
  when ((new.tenant, new.name, new.revision, new.digest, new.definition, new.created_at, new.creator)
        is distinct from (old.tenant, old.name, old.revision, old.digest, old.definition, old.created_at, old.creator)
        or (old.retired_at is not null and new.retired_at is distinct from old.retired_at))
  execute function refuse_change_of_a_revision();
create trigger agent_revisions_are_kept before delete or truncate on agent_revisions
  for each statement execute function refuse_change_of_a_revision();
create trigger agent_builds_stay before update or delete or truncate on agent_builds
  for each statement execute function refuse_change_of_a_revision();

-- The audit log is append-only. The hash of each record covers the record and the hash before it (tenure/domain/audit.py).
create table audit_records (
  number      bigint primary key check (number >= 1),
  record_id   text not null unique,
  recorded_at timestamptz not null,
  tenant      text not null,
  subject     text not null,
  peer        text not null,
  method      text not null,
  target      text not null,
  decision    text not null check (decision in ('ALLOWED', 'DENIED')),
  reason      text not null,
  count       bigint not null check (count >= 1),
  recorder    text not null default '',                       -- the identity of the process that recorded it
  hash        bytea not null unique check (octet_length(hash) = 32)
);
create index audit_records_of_tenant on audit_records (tenant, number);
create index audit_records_of_subject on audit_records (subject, number);
create index audit_records_of_method on audit_records (method, number);

create function refuse_change_of_the_audit_log() returns trigger language plpgsql as $$
begin
  raise exception 'the audit log is append-only' using errcode = 'check_violation';
end $$;
create trigger audit_records_stay before update or delete or truncate on audit_records
  for each statement execute function refuse_change_of_the_audit_log();

create function refuse_gap_in_the_audit_log() returns trigger language plpgsql set search_path = ledger, pg_temp as $$
begin
  if new.number <> (select coalesce(max(number), 0) + 1 from audit_records) then
    raise exception 'the audit log has no gaps' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger audit_records_follow before insert on audit_records
  for each row execute function refuse_gap_in_the_audit_log();
