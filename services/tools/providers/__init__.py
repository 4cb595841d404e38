"""Tool providers: backends of users, in any language, that serve `ToolProviderService`.

settings.py   what the config file says of them      provider.py   one of them: its connection, its tools
provider.py    one call, sent and answered            provider.py   what a status says of what was done
provider.py    all of them
"""
