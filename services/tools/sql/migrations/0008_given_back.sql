-- Calls in doubt that never ran are given back to the bounds, and forgotten tasks have no counted calls.

-- A call with an effect key may be in doubt although nothing began: it asks a person whether it may repeat the effect.
-- Its record then has no start. If it gets an outcome, it never ran.
drop trigger return_counted_call on calls;
create trigger return_counted_call after update on calls for each row
  when ((new.state = 'NOT_RUN' and old.state <> 'NOT_RUN')
        or (new.state = 'FINISHED' and not old.begun_before
            and (old.state = 'ACCEPTED' or (old.state = 'IN_DOUBT' and old.started_at is null))))
  execute function return_counted_call();

delete from counted_calls k using fences f
 where f.task_id = k.task_id and f.forgotten_at is not null and not k.returned;
