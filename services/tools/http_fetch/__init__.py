"""http_fetch: pages of hosts that the operator allows, as text. Offered only where the config file has its section.

tool.py       the tool                          settings.py   the section, and which URLs it allows
fetching.py   one fetch: hop by hop, bounded    reading.py    a body becomes text      readable.py   HTML becomes text
"""
