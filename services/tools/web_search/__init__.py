"""web_search: one tool, asked of whichever search service the operator has set up.

search.py   the tool      search.py   one search: asked again within its time      settings.py   the config file's
section
formats.py   how each service is asked, and how its answer is read
"""
