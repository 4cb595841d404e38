"""The tool web_search: sends a query to the search service that the operator configured.

settings.py   the section `web_search` of the config file
formats.py    the request and the answer of each search service, as pure functions
search.py     the tool; one search with its retries, and its results as text
"""
