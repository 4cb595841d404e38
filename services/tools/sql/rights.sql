-- The rights of the tool service's role, given by the owner of the schema after each migration.
grant usage on schema tools to {role};
grant select, insert, update, delete on all tables in schema tools to {role};
revoke insert, update, delete on tools.migrations from {role};
