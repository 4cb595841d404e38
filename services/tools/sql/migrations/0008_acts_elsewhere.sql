-- The call's effect is brought about outside of the process that runs it, such as by a provider: that its runner is gone says
-- nothing of what goes on there.
alter table calls add column acts_elsewhere boolean not null default false;
