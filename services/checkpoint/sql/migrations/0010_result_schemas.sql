-- Results with a shape: of tasks that say what theirs must be, SUCCEEDED ones have it as JSON, and no others do.
alter table tasks
  add column has_result_schema boolean not null default false,
  add column result_json       bytea not null default '',     -- UTF-8 that may hold \u0000
  add constraint success_has_its_json check ((result_json <> '') = (has_result_schema and state = 'SUCCEEDED'));
