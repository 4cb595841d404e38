"""The programs of the peers. They run in the peers' environment, not in the project's, and import nothing of Tenure."""
