"""Writes llms.txt and llms-full.txt, by the convention of llmstxt.org: the documentation for language models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig


def short_index(config: MkDocsConfig) -> str:
    """Returns the list of pages, by the sections of the navigation."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.nav or []:
        for title, pages in section.items():
            lines += [f"## {title}", ""]
            lines += [f"- [{name}]({_address(path)})" for name, path in _pages(title, pages)]
            lines.append("")
    return "\n".join(lines)


def whole_text(config: MkDocsConfig, elsewhere: Mapping[str, str], root: Path) -> str:
    """Returns the text of all pages that people write, in the order of the navigation."""
    parts = []
    for section in config.nav or []:
        for title, pages in section.items():
            for _, path in _pages(title, pages):
                source = root / elsewhere.get(path, f"docs/{path}")
                if source.is_file():
                    parts.append(source.read_text().strip())
    return "\n\n".join(parts) + "\n"


def _pages(title: str, pages: Any) -> Iterator[tuple[str, str]]:
    """Yields the pages of a section: their titles and paths."""
    if isinstance(pages, str):
        yield title, pages
        return
    for page in pages:
        for name, path in page.items():
            yield from _pages(name, path)


def _address(path: str) -> str:
    """Returns the address of a page on the site, as use_directory_urls makes it."""
    page = path.removesuffix(".md").removesuffix("index")
    return f"{page}/" if page else "."
