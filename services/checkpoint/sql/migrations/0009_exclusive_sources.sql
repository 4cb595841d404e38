-- One living task per conversation, for those who ask for it: "<kind>/<source_id>"; null: did not ask.
alter table tasks add column exclusive_source text check (exclusive_source <> '');

create unique index tasks_one_per_source on tasks (tenant, exclusive_source)
  where exclusive_source is not null and ended_at is null;
