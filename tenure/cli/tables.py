"""Tables as this command prints them."""

from __future__ import annotations

from rich.table import Table


def make_table(*columns: str) -> Table:
    """Columns without lines: easy to read, and to cut with awk."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0)
    return table


def make_grid() -> Table:
    """Names and what belongs to them, which may take more lines."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid
