"""Hides the provider's key, and the values of an endpoint's headers, in texts that the owners of tasks read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tenure.domain.tool_arguments import TRUNCATED

_SHORTEST_SECRET: Final = 8
"""A shorter key, such as "none", is not a secret, and may be part of any word."""
_SCHEMES: Final = frozenset({"Basic", "Bearer", "Token"})


def secrets_of(key: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Returns what no text quotes, and the name that stands for it: the key, and the values of headers."""
    secrets = {key: "key"}
    for name, value in headers.items():
        scheme, _, token = value.partition(" ")
        secrets |= {value: name, **({token: name} if scheme in _SCHEMES else {})}
    return secrets


def without_secrets(text: str, secrets: Mapping[str, str]) -> str:
    """Returns the text with the name of each secret, such as "[key]", in its place.

    Also where the text was truncated within the secret. `secrets`: the names by the secrets.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) < _SHORTEST_SECRET:
            continue
        name = f"[{secrets[secret]}]"
        text = text.replace(secret, name)
        for length in range(len(secret) - 1, _SHORTEST_SECRET - 1, -1):
            text = text.replace(f"{secret[:length]}{TRUNCATED}", f"{name}{TRUNCATED}")
    return text
