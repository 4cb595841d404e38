"""http_fetch: pages of hosts that the operator allows, as text. Offered only where the config file has its section.

fetch.py       the tool                          settings.py   the section, and which URLs it allows
fetch.py   one fetch: hop by hop, bounded    text.py    a body becomes text      text.py   HTML becomes text
"""
