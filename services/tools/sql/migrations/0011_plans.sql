-- The plan that a call used, by which a person had approved it; '': none.
alter table calls add column plan_id text not null default '';
