-- Sub-agents: created with their call; and the sub-agent events between them and their parents.

-- name: parent
-- The parent: its spec, its depth, the number of live tasks in its tree, and its recorded tools. Runs under the lock of
-- the root's budget, which every spawn in the tree holds.
select f.body, t.depth,
       1 + (select count(*) from tasks o where o.root_task_id = t.root_task_id and o.depth > 0 and o.ended_at is null),
       (select d.body from entries d where d.task_id = t.task_id and d.kind = %(tools_defined)b::smallint
         order by d.sequence desc limit 1)
  from tasks t join entries f on f.task_id = t.task_id and f.sequence = 1
 where t.task_id = %(task_id)b::text::uuid;

-- name: taken
-- Whether ids or request ids of new sub-agents are in use. They are derived, so only a deliberate request can have
-- taken them.
select exists (select from tasks where task_id = any(%(task_ids)b::text[]::uuid[]))
    or exists (select from tasks where tenant = %(tenant)b and request_id = any(%(request_ids)b::text[]));

-- name: note_spawned
-- Updates the locked row of the parent. Returns no row unless all sub-agents exist. Gives them the groups for effect keys of
-- their root, if they are not the root itself and no run: they outlive its row.
with given as (
  update tasks c
     set effects_tree = coalesce(r.effects_tree, p.effects_tree),
         effects_run = coalesce(run_of_source(r), p.effects_run)
    from tasks p left join tasks r on r.task_id = p.root_task_id
   where p.task_id = %(task_id)b::text::uuid and c.task_id = any(%(task_ids)b::text[]::uuid[])
     and (coalesce(r.effects_tree, p.effects_tree) is not null or coalesce(run_of_source(r), p.effects_run) <> '')
)
update tasks set sub_agents = sub_agents + cardinality(%(task_ids)b::text[])
 where task_id = %(task_id)b::text::uuid
   and cardinality(%(task_ids)b::text[]) = (
         select count(*) from tasks c
          where c.task_id = any(%(task_ids)b::text[]::uuid[]) and c.parent_task_id = %(task_id)b::text::uuid)
returning task_id;

-- name: sub_agents_of
-- The sub-agents of a call, in the order of its goals. Reads results only on request, because they may be long.
select c.task_id::text, c.state, c.reason, c.message, case when %(with_results)b::boolean then c.result else '' end,
       extract(epoch from clock_timestamp() - c.created_at)::float8
  from tasks c
 where c.parent_task_id = %(task_id)b::text::uuid and c.spawn_call_id = %(call_id)b::text
 order by c.spawn_index;

-- name: take_news
-- The oldest sub-agent events of one kind; skips those that another replica has locked.
delete from family_news n
 using (select position from family_news where parent_moved = %(parent_moved)b::boolean
         order by position limit %(limit)b for update skip locked) taken
 where n.position = taken.position
returning n.parent_task_id::text;

-- name: tell_again
-- Repeats an event that leads to more sub-agents than one transaction handles.
insert into family_news (parent_task_id, parent_moved)
select t.task_id, true from tasks t where t.task_id = any(%(parents)b::text[]::uuid[]);

-- name: to_stop
-- Live sub-agents that no parent awaits: their parent has ended or has a pending ending, or their call is closed. A
-- sub-agent that an operator requeued is stopped only when its parent ends.
select c.task_id::text, p.task_id::text, p.ended_at is not null, p.ending_state <> ''
  from tasks p join tasks c on c.parent_task_id = p.task_id
 where p.task_id = any(%(parents)b::text[]::uuid[]) and c.ended_at is null and c.ending_state = ''
   and (p.ended_at is not null or p.ending_state <> ''
        or (c.attempt = 1 and not c.spawn_call_id = any(p.open_calls)))
 order by c.task_id
 limit %(limit)b;

-- name: pass_on
-- Notes that a message goes on to the sub-agents of its task, those after an id.
insert into passed_messages (parent_task_id, sequence, after_task_id)
values (%(parent)b::text::uuid, %(sequence)b, %(after)b::text::uuid);

-- name: take_passed
-- The oldest message that goes on; skips one that another replica has locked. Without an entry if its task was pruned.
with taken as (
  delete from passed_messages n
   using (select position from passed_messages order by position limit 1 for update skip locked) oldest
   where n.position = oldest.position
  returning n.parent_task_id, n.sequence, n.after_task_id
)
select n.parent_task_id::text, n.sequence, n.after_task_id::text, e.actor, e.body
  from taken n left join entries e on e.task_id = n.parent_task_id and e.sequence = n.sequence;

-- name: live_sub_agents
-- A page of the live sub-agents of a task.
select c.task_id::text from tasks c
 where c.parent_task_id = %(parent)b::text::uuid and c.task_id > %(after)b::text::uuid
   and c.ended_at is null and c.ending_state = ''
 order by c.task_id
 limit %(limit)b;

-- name: take_raised
-- The oldest raise of a budget; skips those that another replica has locked.
delete from raised_budgets r
 using (select position from raised_budgets order by position limit 1 for update skip locked) taken
 where r.position = taken.position
returning r.root_task_id::text;

-- name: wanting_budget
-- The tasks of a tree that want budget: those that wait for it, and the sub-agents that ended at a cap while the call
-- of their parent is open. The limits of a tree bound their number. The second column is the parent of such a
-- sub-agent: it must be locked too, so that its call does not get an outcome meanwhile.
select t.task_id::text, null
  from tasks t
 where t.root_task_id = %(root_task_id)b::text::uuid and t.state = 'WAITING_USER' and t.reason = 'BUDGET_REQUESTED'
union all
select c.task_id::text, p.task_id::text
  from tasks p join tasks c on c.parent_task_id = p.task_id
 where (p.task_id = %(root_task_id)b::text::uuid
        or (p.root_task_id = %(root_task_id)b::text::uuid and p.depth > 0 and p.ended_at is null))
   and p.ended_at is null and p.ending_state = '' and c.spawn_call_id = any(p.open_calls)
   and c.state = 'COST_EXCEEDED' and c.reason in ('TOKEN_LIMIT', 'MONEY_LIMIT');
