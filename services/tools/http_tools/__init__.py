"""HTTP tools: one request of the operator's making for each call, with its idempotency key and its epoch.

settings.py   what the config file says of them       requests.py   the request of a call
calling.py    one call, sent and answered             answers.py    what a response says of what was done
opening.py    all of them
"""
