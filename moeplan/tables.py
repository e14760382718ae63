"""Tables for people: how one value is written, and rows as HTML for Jupyter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

Rows = list[dict[str, Any]]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of `rows`, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def html_table(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> str:
    """`rows` as an HTML table, columns as `columns_of`, values as `cell`; all text is escaped."""
    columns = columns_of(rows)
    head = "".join(f"<th>{escape(heading(column))}</th>" for column in columns)
    body = "".join(f"<tr>{_html_cells(row, columns)}</tr>" for row in rows)
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _html_cells(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    return "".join(f"<td>{escape(cell(row.get(column, ''), column))}</td>" for column in columns)


def html_lines(lines: Sequence[str]) -> str:
    """`lines` as an HTML list; all text is escaped."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""


SPELT = {
    **{"gb": "GB", "gib": "GiB", "gpu": "GPU", "gpus": "GPUs", "hbm": "HBM", "mfu": "MFU", "flop": "FLOP"},
    **{"nic": "NIC", "nics": "NICs"},
}
"""Words of names of columns that people write in other letters."""


def heading(column: str) -> str:
    """The name of a column, or of a fact, as people read it: "nic_gb_per_s" is "NIC GB/s"."""
    words = " ".join(SPELT.get(word, word) for word in column.split("_"))
    return words.replace("GB per s", "GB/s").replace("FLOP per s", "FLOP/s").replace("tokens per s", "tokens/s")


def cell(value: Any, column: str) -> str:
    """One value as a table shows it: four digits, shares in percent, yes and no."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and column in ("mfu", "bubble", "share", "taper"):
        return f"{value:.1%}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    return str(value)
