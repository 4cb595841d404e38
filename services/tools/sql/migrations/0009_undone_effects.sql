-- The call whose effect is undone, "<task_id>/<call_id>": while it has the key, the key is free for a new round. A version
-- of the service that does not know the column gives the key to another call, and then the column says nothing.
alter table effects add column undone_call text;
