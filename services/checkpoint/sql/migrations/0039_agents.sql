-- Agents by name, and their revisions. A revision never changes, and a task keeps the one that it is pinned to: also for
-- SQL written by hand. Which part of the new tasks a revision gets is in `agents`.

set lock_timeout = '5s';

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
  raise exception 'a revision of an agent never changes' using errcode = 'check_violation';
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

alter table tasks add column agent text not null default '', add column agent_revision integer not null default 0;

-- The open tasks of each revision.
create index tasks_of_revisions on tasks (tenant, agent, agent_revision) where ended_at is null and agent <> '';

create function refuse_new_revision_of_a_task() returns trigger language plpgsql as $$
begin
  if (new.agent, new.agent_revision) is distinct from (old.agent, old.agent_revision) then
    raise exception 'a task keeps the revision of its agent' using errcode = 'check_violation';
  end if;
  return new;
end $$;
create trigger tasks_keep_their_revision before update of agent, agent_revision on tasks
  for each row execute function refuse_new_revision_of_a_task();
