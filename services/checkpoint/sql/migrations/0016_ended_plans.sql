-- Plans that a person ends early: ends_at becomes that time. `approvers`: who could answer the wait, and may end the plan;
-- none: everyone may.
alter table call_plans
  add column approvers  text[] not null default '{}',
  add column ended_by   text   not null default '',
  add column end_reason text   not null default '';
