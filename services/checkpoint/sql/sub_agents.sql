-- Sub-agents: born with their call, and the news between them and their parents.

-- name: parent
-- Who spawns: what it was submitted as, how deep it stands, how much of its tree is alive, and the tools that it was told of.
-- Under the lock of its root's budget, which all who spawn in a tree hold.
select f.body, t.depth,
       1 + (select count(*) from tasks o where o.root_task_id = t.root_task_id and o.depth > 0 and o.ended_at is null),
       (select d.body from entries d where d.task_id = t.task_id and d.kind = %(tools_defined)b::smallint
         order by d.sequence desc limit 1)
  from tasks t join entries f on f.task_id = t.task_id and f.sequence = 1
 where t.task_id = %(task_id)b::text::uuid;

-- name: taken
-- Whether names that sub-agents are to have are in use. They are derived, so only somebody who took them on purpose has them.
select exists (select from tasks where task_id = any(%(task_ids)b::text[]::uuid[]))
    or exists (select from tasks where tenant = %(tenant)b and request_id = any(%(request_ids)b::text[]));

-- name: note_spawned
-- On the row of the parent, locked before; no row unless all of them are there.
update tasks set sub_agents = sub_agents + cardinality(%(task_ids)b::text[])
 where task_id = %(task_id)b::text::uuid
   and cardinality(%(task_ids)b::text[]) = (
         select count(*) from tasks c
          where c.task_id = any(%(task_ids)b::text[]::uuid[]) and c.parent_task_id = %(task_id)b::text::uuid)
returning task_id;

-- name: sub_agents_of
-- What a call spawned, in the order of its goals. Results only once they are wanted: they may be long.
select c.task_id::text, c.state, c.reason, c.message, case when %(with_results)b::boolean then c.result else '' end,
       extract(epoch from clock_timestamp() - c.created_at)::float8
  from tasks c
 where c.parent_task_id = %(task_id)b::text::uuid and c.spawn_call_id = %(call_id)b::text
 order by c.spawn_index;

-- name: take_news
-- The oldest news of one sort; what others are at is skipped.
delete from family_news n
 using (select position from family_news where parent_moved = %(parent_moved)b::boolean
         order by position limit %(limit)b for update skip locked) taken
 where n.position = taken.position
returning n.parent_task_id::text;

-- name: tell_again
-- More than one transaction should do was found.
insert into family_news (parent_task_id, parent_moved)
select distinct p::uuid, true from unnest(%(parents)b::text[]) as p;

-- name: to_stop
-- Sub-agents that live on although nobody wants them: their parent has ended or is to end, or their call is over. One that
-- an operator requeued lives by the operator's will: only its parent's end stops it.
select c.task_id::text, p.task_id::text, p.ended_at is not null, p.ending_state <> ''
  from tasks p join tasks c on c.parent_task_id = p.task_id
 where p.task_id = any(%(parents)b::text[]::uuid[]) and c.ended_at is null and c.ending_state = ''
   and (p.ended_at is not null or p.ending_state <> ''
        or (c.attempt = 1 and not c.spawn_call_id = any(p.open_calls)))
 order by c.task_id
 limit %(limit)b;
