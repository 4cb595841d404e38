-- Calls in doubt as people are shown them, however they are looked for.
create view doubts as
select c.task_id, c.call_id, f.tenant, c.tool, c.effect_class, c.arguments, c.call_attempt, c.started_at, c.doubted_at, c.runner_id,
       coalesce(r.instance, '') as runner_instance, r.ended_at is not null and not c.acts_elsewhere as runner_gone, c.doubt_note,
       c.acts_elsewhere
  from calls c join fences f using (task_id) left join runners r using (runner_id)
 where c.doubted_at is not null and c.state = 'IN_DOUBT';
