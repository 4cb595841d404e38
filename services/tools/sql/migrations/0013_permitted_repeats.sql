-- The call whose effect had happened, or may have, when a person permitted the call that has the key to repeat it:
-- {"of": the call that has the key, "task_id", "call_id", "fact"}. While the repeat has not happened, the effect of that
-- call counts. A version of the service that does not know the column gives the key to another call, and then the column
-- says nothing.
alter table effects add column earlier jsonb;
