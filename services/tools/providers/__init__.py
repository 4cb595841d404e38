"""Tool providers: backends of users, in any language, that serve `ToolProviderService`.

settings.py   what the config file says of them      provider.py   one of them: its connection, its tools
calling.py    one call, sent and answered            refusals.py   what a status says of what was done
opening.py    all of them
"""
