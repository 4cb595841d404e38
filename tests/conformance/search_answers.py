"""Answers of search services, as their documentation shows them, shortened to what an answer has of each kind."""

from __future__ import annotations

from typing import Any, Final

KEY: Final = "k-5f1d-not-to-be-seen"

# https://api-dashboard.search.brave.com/app/documentation/web-search/responses
BRAVE: Final[dict[str, Any]] = {
    "type": "search",
    "query": {
        "original": "brave search",
        "show_strict_warning": False,
        "is_navigational": True,
        "local_decision": "drop",
        "country": "us",
        "bad_results": False,
        "more_results_available": True,
    },
    "mixed": {"type": "mixed", "main": [{"type": "web", "index": 0, "all": False}], "top": [], "side": []},
    "web": {
        "type": "search",
        "results": [
            {
                "title": "Brave Search &amp; friends",
                "url": "https://search.brave.com/",
                "is_source_local": False,
                "is_source_both": False,
                "description": "Search the web <strong>privately</strong> &#x27;now&#x27;.",
                "language": "en",
                "family_friendly": True,
                "type": "search_result",
                "subtype": "generic",
                "meta_url": {"scheme": "https", "netloc": "search.brave.com", "path": ""},
                "age": "2 days ago",
            },
            {
                "title": "Search engine",
                "url": "https://en.wikipedia.org/wiki/Search_engine",
                "description": "A search engine\n is a  software system.",
                "type": "search_result",
            },
        ],
        "family_friendly": True,
    },
}

# https://docs.tavily.com/documentation/api-reference/endpoint/search
TAVILY: Final[dict[str, Any]] = {
    "query": "Who is Leo Messi?",
    "answer": None,
    "images": [],
    "results": [
        {
            "title": "Lionel Messi Facts | Britannica",
            "url": "https://www.britannica.com/facts/Lionel-Messi",
            "content": "Lionel Messi, an Argentine footballer.",
            "score": 0.81025416,
            "raw_content": None,
            "favicon": "https://britannica.com/favicon.png",
        },
        {"title": "Leo", "url": "https://example.com/leo", "content": None, "score": 0.5},
    ],
    "auto_parameters": {"topic": "general", "search_depth": "basic"},
    "response_time": "1.67",
    "request_id": "123e4567-e89b-12d3-a456-426614174111",
}

# https://serper.dev, its playground
SERPER: Final[dict[str, Any]] = {
    "searchParameters": {"q": "apple inc", "gl": "us", "hl": "en", "num": 10, "type": "search"},
    "knowledgeGraph": {"title": "Apple", "type": "Technology company", "website": "http://www.apple.com/"},
    "organic": [
        {
            "title": "Apple",
            "link": "https://www.apple.com/",
            "snippet": "Discover the innovative world of Apple.",
            "sitelinks": [{"title": "Support", "link": "https://support.apple.com/"}],
            "position": 1,
        },
        {"title": "Apple Inc.", "link": "https://en.wikipedia.org/wiki/Apple_Inc.", "snippet": "x", "position": 2},
    ],
    "peopleAlsoAsk": [{"question": "What does Apple Inc. do?", "snippet": "…", "title": "…", "link": "…"}],
    "credits": 1,
}

# https://docs.searxng.org/dev/search_api.html
SEARXNG: Final[dict[str, Any]] = {
    "query": "searxng",
    "number_of_results": 0,
    "results": [
        {
            "url": "https://docs.searxng.org/",
            "title": "Welcome to SearXNG",
            "content": "SearXNG is a metasearch engine.",
            "publishedDate": None,
            "thumbnail": "",
            "engine": "duckduckgo",
            "template": "default.html",
            "parsed_url": ["https", "docs.searxng.org", "/", "", "", ""],
            "engines": ["duckduckgo", "brave"],
            "positions": [1, 1],
            "score": 4.0,
            "category": "general",
        },
        {"url": "https://github.com/searxng", "title": "searxng", "engine": "brave", "score": 1.0},
    ],
    "answers": [],
    "corrections": [],
    "infoboxes": [],
    "suggestions": ["searxng docker"],
    "unresponsive_engines": [],
}

PLAIN: Final[dict[str, Any]] = {
    "results": [
        {"title": "T0", "url": "https://e/0", "snippet": "S0"},
        {"title": "T1", "url": "https://e/1", "snippet": "S1"},
    ]
}
