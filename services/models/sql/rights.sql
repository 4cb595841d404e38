-- The rights of the model runner's role, given by the owner of the schema after each migration.
grant usage on schema models to {role};
grant select, insert, update, delete on all tables in schema models to {role};
revoke insert, update, delete on models.migrations from {role};
