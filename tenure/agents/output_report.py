"""Reports a model call while it runs: the usage that the provider states, and an estimate of the output since then.

Some providers state the usage at the end of the answer only, or the output. The cost of a call that is stopped
or fails is known from its report.
"""

from __future__ import annotations

from dataclasses import replace

from tenure.control.model_calls import ModelCallReport
from tenure.domain.budget import TokenUsage
from tenure.domain.texts import estimated_tokens


class OutputReport:
    """The report of one model call of an agent, from its stream."""

    def __init__(self, report: ModelCallReport) -> None:
        self._report, self._stated, self._bytes_since = report, TokenUsage(), 0

    def on_text(self, block: int, text: str) -> None:
        """Shows a piece of text."""
        self._count(text)
        self._report.on_text(block, text)

    def on_hidden(self, text: str) -> None:
        """Counts output that is not shown, such as thoughts and the arguments of tools."""
        if text:
            self._count(text)
            output_tokens = self._stated.output_tokens + estimated_tokens(self._bytes_since)
            self._report.on_usage(replace(self._stated, output_tokens=output_tokens))

    def on_usage(self, usage: TokenUsage) -> None:
        """Takes the usage that the provider has stated so far. One that it has stated before says nothing new."""
        if usage != self._stated:
            self._stated, self._bytes_since = usage, 0
            self._report.on_usage(usage)

    def _count(self, text: str) -> None:
        self._bytes_since += len(text.encode("utf-8", "replace"))
