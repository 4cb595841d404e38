-- The statements of approver groups and answer links.

-- name: lock_tenant
-- Changes of groups of one tenant wait here for each other.
select pg_advisory_xact_lock(hashtextextended('approver groups of ' || %(tenant)b::text, 0));

-- name: count_others
-- The groups of a tenant but the one of this name; by the primary key.
select count(*) from approver_groups where tenant = %(tenant)b and name <> %(name)b;

-- name: set_group
-- Creates the group, or replaces its members.
insert into approver_groups as g (tenant, name, members, actor)
values (%(tenant)b, %(name)b, %(members)b::text[], %(actor)b)
on conflict (tenant, name) do update
   set members = excluded.members, actor = excluded.actor, updated_at = clock_timestamp()
returning name, members, updated_at, actor;

-- name: list_groups
-- All groups of a tenant: a bounded number.
select name, members, updated_at, actor from approver_groups where tenant = %(tenant)b order by name;

-- name: delete_group
-- Returns a row if there was a group.
delete from approver_groups where tenant = %(tenant)b and name = %(name)b returning 1;

-- name: members
-- The members of some groups of a tenant; a group that does not exist has none.
select name, members from approver_groups where tenant = %(tenant)b and name = any(%(names)b::text[]);

-- name: present_wait
-- The wait of a task, without a lock: an answer by link is decided under the lock of the row.
select wait from tasks where task_id = %(task_id)b::text::uuid and tenant = %(tenant)b and wait <> '';

-- name: add_links
-- One link for each addressee, unless the webhook was deleted meanwhile.
insert into answer_links (link_id, digest, tenant, task_id, wait_id, webhook_id, addressee, expires_at)
select l.link_id, l.digest, %(tenant)b, %(task_id)b::text::uuid, %(wait_id)b, w.webhook_id, l.addressee,
       least(%(deadline)b::timestamptz, clock_timestamp() + make_interval(secs => %(seconds)b))
  from unnest(%(link_ids)b::text[], %(digests)b::bytea[], %(addressees)b::text[]) as l(link_id, digest, addressee)
  join webhooks w on w.webhook_id = %(webhook_id)b::text::uuid
returning link_id;

-- name: link
-- One link. The time of the database decides whether it has expired.
select link_id, digest, tenant, task_id::text, wait_id, addressee, expires_at <= clock_timestamp(), expires_at
  from answer_links where link_id = %(link_id)b;

-- name: forget_links
-- Links that expired long ago; then their tokens are those of no link.
delete from answer_links
 where link_id in (select link_id from answer_links
                    where expires_at < clock_timestamp() - make_interval(secs => %(kept_seconds)b)
                    order by expires_at limit %(limit)b)
returning 1;

-- name: keep_plan
-- Keeps a plan of a tree for the tokens of its next grants. The caller has locked the budget of the tree.
insert into call_plans (plan_id, root_task_id, plan, ends_at, approvers)
values (%(plan_id)b, %(root_task_id)b::text::uuid, %(plan)b, to_timestamp(%(ends_at)b::float8), %(approvers)b::text[]);

-- name: list_plans
-- The plans of a tree that are in force, or ended less than a week ago: the tool service keeps what they have counted.
select plan, ended_by, end_reason from call_plans
 where root_task_id = %(root_task_id)b::text::uuid and ends_at > now() - interval '7 days'
 order by ends_at desc, plan_id limit 100;

-- name: lock_plan
-- Locks a plan of a tree for its end.
select approvers, ends_at <= now(), plan, ended_by, end_reason from call_plans
 where plan_id = %(plan_id)b and root_task_id = %(root_task_id)b::text::uuid for no key update;

-- name: end_plan
-- Ends a plan that lock_plan has locked.
update call_plans set ends_at = least(ends_at, now()), ended_by = %(ended_by)b, end_reason = %(end_reason)b
 where plan_id = %(plan_id)b;

-- name: count_plans
-- How many plans of a tree are in force.
select count(*) from call_plans where root_task_id = %(root_task_id)b::text::uuid and ends_at > now();

-- name: keep_approvals
-- Adds approved calls to those of the task that are still open.
update tasks t
   set approved_calls = %(approved)b::text[] || array(
         select a from unnest(t.approved_calls) a where split_part(a, ':', 1) = any(t.open_calls))
 where task_id = %(task_id)b::text::uuid;
