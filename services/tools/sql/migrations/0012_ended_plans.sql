-- Of the counter of a plan: when a person ended it early. It counts no call from then on. null: it was not.
alter table rule_counters add column ended_early_at timestamptz;
