-- The open calls that a person has approved, each as "<call_id>:<digest>": the next owner's token has them.
alter table tasks add column approved_calls text[] not null default '{}';
