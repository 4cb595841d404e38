"""A web search without a network: GET /search?q=…&n=5 → {"results": [{"title", "url", "snippet"}]}.

The same query always has the same results. The pages are about an invented market of help-desk products, the subject of
the simulator's scenario `research`. Any other query gets plausible pages that say that they are invented. The simulator
serves the search; `python -m devstack.search_stub --port N` serves it alone.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import re
import signal
import sys
from typing import NamedTuple

from devstack.simulator.http_server import HttpRequest, HttpServer, Reply

MAX_RESULTS = 20
DEFAULT_RESULTS = 5
MAX_QUERY_CHARACTERS = 1000


class SearchPage(NamedTuple):
    title: str
    url: str
    snippet: str


PAGES = (
    SearchPage(
        "Brightdesk pricing: plans for every support team",
        "https://brightdesk.example/pricing",
        "Starter $19, Team $49 and Enterprise $99 per agent and month, billed yearly. Monthly billing adds 20 %. "
        "Every plan has unlimited tickets; the AI assistant is an add-on at $15 per agent.",
    ),
    SearchPage(
        "Orbitly plans and prices",
        "https://orbitly.example/plans",
        "Free for up to 3 agents. Growth $35 and Scale $75 per agent and month. The AI assistant is included from"
        " Growth on, with 1,000 resolutions a month; each further one costs $0.40.",
    ),
    SearchPage(
        "Taskwell: one flat price for support",
        "https://taskwell.example/pricing",
        "$299 a month for up to 10 agents, $25 for every further agent. All features included, no add-ons. "
        "On-premises licence on request.",
    ),
    SearchPage(
        "Brightdesk against Orbitly: a feature comparison",
        "https://saasreview.example/brightdesk-vs-orbitly",
        "Brightdesk leads in reporting and has 240 integrations, Orbitly in automation with 85. Single sign-on "
        "costs extra at Orbitly below Scale. Both keep data in the EU on request.",
    ),
    SearchPage(
        "Taskwell features: shared inbox, SLAs, knowledge base",
        "https://taskwell.example/features",
        "Shared inbox, SLA timers, a knowledge base in 30 languages and 60 integrations. No native AI assistant; "
        "a webhook API connects your own. Single sign-on in every plan.",
    ),
    SearchPage(
        "What support teams pay for help-desk software: a survey of 412 companies",
        "https://deskindex.example/reports/helpdesk-pricing",
        "The median team of 25 agents pays $1,180 a month. 41 % changed their vendor for price, 33 % for missing "
        "automation. Per-resolution pricing of AI is the cost that is most often underestimated.",
    ),
    SearchPage(
        "Orbitly raises Scale price, adds audit log",
        "https://technews.example/orbitly-scale-price",
        "Orbitly's Scale plan goes from $69 to $75 per agent. It gains an audit log and a 99.9 % uptime "
        "commitment; Growth customers keep their price for two years.",
    ),
    SearchPage(
        "Brightdesk security and compliance",
        "https://brightdesk.example/security",
        "SOC 2 Type II and ISO 27001. Single sign-on from Team on, audit log in Enterprise. EU data residency in "
        "Enterprise.",
    ),
    SearchPage(
        "How to choose a help desk: total cost over three years",
        "https://deskindex.example/guides/total-cost",
        "Compare the price per agent, add-ons, the assistant's price per resolution and the cost of migration. "
        "Flat pricing wins from about twelve agents on.",
    ),
    SearchPage(
        "Customer reviews: Taskwell",
        "https://saasreview.example/taskwell",
        "4.4 of 5 from 1,902 reviews. Praised: predictable price, quick support. Criticised: reporting is basic, "
        "fewer integrations than competitors.",
    ),
)


def search(query: str, count: int = DEFAULT_RESULTS) -> list[SearchPage]:
    """Returns `count` pages: first the pages that share most words with the query, then invented ones."""
    query_words = _words(query)
    scored = [(len(query_words & _words(f"{page.title} {page.snippet}")), page) for page in PAGES]
    pages = [page for score, page in sorted(scored, key=lambda entry: -entry[0]) if score > 0]
    return [*pages, *_invented(query, count - len(pages))][:count]


async def answer_search(request: HttpRequest, reply: Reply) -> None:
    """Serves GET /search. Answers 400 without a query, or with a count that is not a number from 1 to 20."""
    query, count = request.query.get("q", "").strip(), request.query.get("n", str(DEFAULT_RESULTS))
    if not query or len(query) > MAX_QUERY_CHARACTERS:
        reply.send_json(400, {"error": f"q: must be a query of 1 to {MAX_QUERY_CHARACTERS} characters"})
    elif not (count.isascii() and count.isdigit() and 1 <= int(count) <= MAX_RESULTS):
        reply.send_json(400, {"error": f"n: must be a number from 1 to {MAX_RESULTS}"})
    else:
        reply.send_json(200, {"results": [page._asdict() for page in search(query, int(count))]})


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) > 2}


def _invented(query: str, count: int) -> list[SearchPage]:
    kinds = ("An overview", "A beginner's guide", "Open questions", "Frequently asked questions", "A short history")
    pages = []
    for index in range(count):
        digest = hashlib.blake2b(f"{query}\0{index}".encode(), digest_size=4).hexdigest()
        kind = kinds[index % len(kinds)]
        snippet = f"{kind} of {query}. This page was invented by the development search; nothing in it is a fact."
        pages.append(SearchPage(f"{query}: {kind.lower()}", f"https://library.example/{digest}", snippet))
    return pages


async def _serve(port: int) -> None:
    stopping = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stopping.set)
    server = HttpServer(_only_search)
    await server.start(port=port)
    async with server:
        sys.stdout.write(f"search on http://127.0.0.1:{server.port}/search\n")
        sys.stdout.flush()
        await stopping.wait()


async def _only_search(request: HttpRequest, reply: Reply) -> None:
    if (request.method, request.path) == ("GET", "/search"):
        await answer_search(request, reply)
    else:
        reply.send_json(404, {"error": "this server has only GET /search"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m devstack.search_stub", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="the port; 0 (the default) takes a free one")
    asyncio.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
