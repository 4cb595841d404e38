"""Tool providers: backends of the user, in any language, that serve `ToolProviderService`.

settings.py   the section `providers` of the config file
provider.py   the connection of a provider, its list of tools and its calls; opens all providers
"""
