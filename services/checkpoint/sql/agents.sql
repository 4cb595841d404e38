-- The statements of agents and their revisions.

-- name: candidates
-- The revisions that a new task may be pinned to: the one that it names, or the current and the ramping one.
select a.current_revision, a.ramp_revision, a.ramp_basis_points, r.revision, r.digest, r.definition,
       r.retired_at is not null,
       exists (select from agent_builds b where b.tenant = r.tenant and b.name = r.name and b.revision = r.revision)
  from agents a
  left join agent_revisions r
    on r.tenant = a.tenant and r.name = a.name
   and r.revision = any (case when %(revision)b = 0 then array[a.current_revision, a.ramp_revision]
                              else array[%(revision)b::bigint::integer] end)
 where a.tenant = %(tenant)b and a.name = %(name)b;

-- name: ensure
-- Makes the row of an agent, without a revision yet.
insert into agents (tenant, name, actor) values (%(tenant)b, %(name)b, %(actor)b) on conflict do nothing;

-- name: count
-- Agents of a tenant, for the limit.
select count(*) from agents where tenant = %(tenant)b;

-- name: lock
-- Locks an agent: its changes wait here for each other.
select {agent}, ''::bytea
  from agents a where a.tenant = %(tenant)b and a.name = %(name)b
   for no key update;

-- part: read
-- The columns of AgentRow, with the definition of the current revision.
select {agent}, r.definition
  from agents a join agent_revisions r on r.tenant = a.tenant and r.name = a.name and r.revision = a.current_revision

-- name: read
-- One agent.
{read}
 where a.tenant = %(tenant)b and a.name = %(name)b;

-- name: list
-- A page of agents by name.
{read}
 where a.tenant = %(tenant)b and a.name > %(after)b
 order by a.name
 limit %(limit)b;

-- name: find
-- The revision with a definition.
select revision from agent_revisions
 where tenant = %(tenant)b and name = %(name)b and digest = %(digest)b;

-- name: create
-- A revision. Its number was reserved under the lock of the agent.
insert into agent_revisions (tenant, name, revision, digest, definition, creator)
values (%(tenant)b, %(name)b, %(revision)b, %(digest)b, %(definition)b, %(actor)b);

-- name: count_builds
-- Builds of a revision; above 0, its tasks need one of them.
select count(*) from agent_builds
 where tenant = %(tenant)b and name = %(name)b and revision = %(revision)b;

-- name: add_build
-- A repeat finds the build there.
insert into agent_builds (tenant, name, revision, build) values (%(tenant)b, %(name)b, %(revision)b, %(build)b)
on conflict do nothing;

-- name: route
-- Writes where new tasks go.
update agents
   set current_revision = %(current)b, ramp_revision = %(ramp_revision)b, ramp_basis_points = %(ramp_basis_points)b,
       newest_revision = %(newest)b, actor = %(actor)b, reason = %(reason)b, updated_at = clock_timestamp()
 where tenant = %(tenant)b and name = %(name)b;

-- name: retire
-- A repeat changes nothing, also not the time.
update agent_revisions set retired_at = clock_timestamp()
 where tenant = %(tenant)b and name = %(name)b and revision = %(revision)b and retired_at is null;

-- name: open_tasks
-- How many tasks that have not ended each revision has, from the index alone.
select agent_revision, count(*) from tasks
 where tenant = %(tenant)b and agent = %(name)b and agent <> '' and ended_at is null
 group by agent_revision;

-- name: revisions
-- Revisions, newest first: the named ones, and the newest.
select r.tenant, r.name, r.revision, r.digest, case when %(with_definitions)b then r.definition else ''::bytea end,
       r.created_at, r.creator, r.retired_at,
       array(select b.build from agent_builds b
              where b.tenant = r.tenant and b.name = r.name and b.revision = r.revision order by b.build),
       array(select b.registered_at from agent_builds b
              where b.tenant = r.tenant and b.name = r.name and b.revision = r.revision order by b.build)
  from agent_revisions r
 where r.tenant = %(tenant)b and r.name = %(name)b
   and (r.revision = any(%(revisions)b::bigint[]) or r.revision > %(newer_than)b)
 order by r.revision desc
 limit %(limit)b;
