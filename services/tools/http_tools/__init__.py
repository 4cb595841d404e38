"""HTTP tools: one request of the operator's making for each call, with its idempotency key and its epoch.

settings.py   what the config file says of them       http_tool.py   the request of a call
http_tool.py    one call, sent and answered             http_tool.py    what a response says of what was done
http_tool.py    all of them
"""
