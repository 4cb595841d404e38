"""The tool http_fetch: reads pages of hosts that the operator allows, as text.

The tool exists only when the config file has the section `http_fetch`.

settings.py   the section, and the rule which URLs it allows
fetch.py      the tool; one fetch: checks each redirect, within a time and a size
text.py       decodes a body, and turns HTML into text
"""
