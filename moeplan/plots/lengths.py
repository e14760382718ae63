"""Figures of tables: each function draws on the axes it is given, or on new ones, and returns them; none shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeplan.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LINES = {"": "best layout", "balanced_": "balanced, memory ignored"}
"""Prefix of the columns of each line, and its name."""
COLUMNS = {"seq_len"} | {f"{prefix}{side}_gpus" for prefix in LINES for side in ("attention", "ffn")}
"""What a frame must have."""


def plot_split_by_length(frame: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Attention's share of the GPUs in percent over sequence length, for the best and for the balanced split.

    share = attention / (attention + FFN), of the columns of `moeplan.sweep.split_by_length`; GPUs that a layout leaves
    idle are in neither. A length that does not fit has no point on the line of best layouts. SpecError
    for another frame.
    """
    lacking = COLUMNS - set(getattr(frame, "columns", ()))
    if lacking:
        raise SpecError(f"frame: has no column {min(lacking)}; right is what split_by_length gives")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots()
    rows = frame.sort_values("seq_len")
    for prefix, label in LINES.items():
        attention, ffn = rows[f"{prefix}attention_gpus"], rows[f"{prefix}ffn_gpus"]
        ax.plot(rows["seq_len"], 100 * attention / (attention + ffn), marker="o", label=label)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(rows["seq_len"]), [_short(length) for length in rows["seq_len"]], minor=False)
    ax.set(xlabel="sequence length (tokens)", ylabel="GPUs with attention (%)", ylim=(0, 100))
    ax.legend()
    return ax


def _short(tokens: int) -> str:
    """`4K`: multiples of 1024 tokens as such."""
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens}"
