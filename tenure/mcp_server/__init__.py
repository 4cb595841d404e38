"""Tenure as a server of the Model Context Protocol: its tasks as tools, and as tasks of the protocol's extension.

This process keeps nothing: the state is the ledger. So a client that comes back after any restart, of either side,
finds its tasks by their ids. Needs the extra `server`, which has the protocol's package.

server.py     the server with its tools
tasks.py      the extension io.modelcontextprotocol/tasks: tasks/get, tasks/update, tasks/cancel
answers.py    which waits a client may answer, and the form that asks for the answer
settings.py   what clients may spend and answer
main.py       the server on standard input and output, and over HTTP
"""
