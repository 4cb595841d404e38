-- When autovacuum cleans the tables that each step updates. By default it waits until a fifth of a table is dead.
-- Measured by `python -m bench churn` (docs/postgres.md): entries and calls of tools gain nothing.
alter table tasks set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
alter table budgets set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
