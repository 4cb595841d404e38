"""Defines the section `web_search` of the config file: the search service and its limits."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from edges.web_search.formats import FORMATS, Format
from services.tools.sources import Section
from tenure.domain.outbound import Url, parse_url


class WebSearchSettings(Section):
    """The section `web_search`.

    url: the URL of the service's search method; needed when the service has no default URL.
    allow_private: allows a service in a private network, and a connection without TLS.
    """

    provider: Literal["brave", "tavily", "serper", "searxng", "plain"]
    url: str = ""
    api_key: SecretStr | None = None
    timeout_seconds: Annotated[float, Field(ge=0.1, le=120)] = 10.0
    max_results: Annotated[int, Field(ge=1, le=20)] = 20
    allow_private: bool = False

    @property
    def format(self) -> Format:
        """The request and answer format of the service."""
        return FORMATS[self.provider]

    @property
    def endpoint(self) -> Url:
        """The URL of the service's search method."""
        return parse_url(self.url or self.format.url)

    @property
    def key(self) -> str:
        """The API key, "" without one. Never log it."""
        return self.api_key.get_secret_value() if self.api_key else ""

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url:
            parse_url(url)
        return url

    @field_validator("api_key")
    @classmethod
    def _is_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not (key.get_secret_value().isascii() and key.get_secret_value().isprintable()):
            raise ValueError("a key must consist of printable ASCII characters")
        return key

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not (self.url or self.format.url):
            raise ValueError(f"{self.provider} has no default URL: set url to the URL of its search method")
        if self.format.needs_key and not self.key:
            raise ValueError(f"{self.provider} needs a key: set api_key")
        if self.endpoint.scheme != "https" and not self.allow_private:
            raise ValueError("url must begin with https://, unless allow_private is set")
        return self
