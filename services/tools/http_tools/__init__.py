"""HTTP tools: each call is one HTTP request that the operator defined, with the idempotency key and the epoch.

settings.py    the section `http_tools` of the config file
http_tool.py   builds the request of a call, sends it, and turns the response into an answer; opens all HTTP tools
"""
