-- A call that is run again after its runner died may have had its effect the first time. Called off before it begins
-- anew, it is in doubt and not "not run".
alter table calls add column begun_before boolean not null default false;
