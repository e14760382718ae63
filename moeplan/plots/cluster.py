"""A picture of a cluster: one node in full, then one switch of every level, with what it stands for counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from moeplan.errors import SpecError
from moeplan.machine.halves import paths_of
from moeplan.machine.levels import Level, levels_of
from moeplan.machine.words import GB, joined_by
from moeplan.spec.cluster import Node, nic_of
from moeplan.spec.record import write_whole
from moeplan.spec.shipped import cluster_of
from moeplan.topology.core import core

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from moeplan.spec.cluster import ClusterSpec

MOST_DRAWN = 16
"""GPUs and NICs of a node that are drawn; more are counted."""
WIDTH, NODE_WIDTH = 10.0, 7.0
COLOURS = {"gpu": "tab:blue", "nic": "tab:orange", "switch": "tab:gray", "rest": "white"}
FORMATS = (".png", ".svg", ".pdf")


def plot_cluster(cluster: str | Path | ClusterSpec, ax: Axes | None = None) -> Axes:
    """One node of `cluster` with its GPUs, what joins them and its NICs; above it the network level by level.

    `cluster` is a shipped name, a TOML file or a record; SpecError as `load_cluster`.

    A line between GPUs is as thick as its bandwidth over the largest. Beside the one switch of each level that is drawn
    the others are counted. Bandwidths per direction.
    """
    cluster = cluster_of(cluster)
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=(8, 6))
    levels = levels_of(cluster, core(cluster)) if cluster.nodes > 1 else []
    _draw_node(ax, cluster.node)
    _draw_levels(ax, cluster, levels)
    ax.set(xlim=(-0.8, WIDTH + 0.3), ylim=(-2.2, 1.8 + 1.6 * len(levels)), title=cluster.name)
    ax.set_axis_off()
    return ax


def draw(cluster: ClusterSpec, path: Path) -> None:
    """Write the picture to `path`, whole or not at all; SpecError unless it ends in .png, .svg or .pdf."""
    check_picture(path)
    write_whole(path, _rendered(cluster, path.suffix.lower()[1:]))


def check_picture(path: Path) -> None:
    """SpecError unless `path` ends as a picture does."""
    if path.suffix.lower() not in FORMATS:
        raise SpecError(f"{path}: ends in {path.suffix!r}; a picture ends in {', '.join(FORMATS)}")


def svg(cluster: ClusterSpec) -> str:
    """The picture as an <svg> element."""
    text = _rendered(cluster, "svg").decode()
    return text[text.index("<svg") :]


def _rendered(cluster: ClusterSpec, kind: str) -> bytes:
    from matplotlib.figure import Figure

    figure: Figure = Figure(figsize=(8, 6), layout="constrained")
    plot_cluster(cluster, figure.subplots())
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata=None if kind == "png" else {_DATE[kind]: None})
    return out.getvalue()


_DATE = {"svg": "Date", "pdf": "CreationDate"}


def _draw_node(ax: Axes, node: Node) -> None:
    """GPUs in a row, under them what joins them, over them their NICs."""
    drawn = min(node.gpus, MOST_DRAWN)
    at = [NODE_WIDTH * (i + 0.5) / drawn for i in range(drawn)]
    nics = sorted({nic_of(node, i) for i in range(drawn)} - {-1})
    over = {nic: NODE_WIDTH * (k + 0.5) / len(nics) for k, nic in enumerate(nics)}
    _frame(ax, (0.0, -2.0), (NODE_WIDTH, 3.4))
    for i, x in enumerate(at):
        if (nic := nic_of(node, i)) >= 0:
            ax.plot([x, over[nic]], [0.0, 1.0], color="black", linewidth=0.8, zorder=1)
        _label(ax, x, 0.0, str(i), "gpu")
    for nic, x in over.items():
        _label(ax, x, 1.0, str(nic), "nic")
    if node.links:
        _draw_links(ax, node, at)
    elif node.gpus > 1:
        for x in at:
            ax.plot([x, x], [-0.8, 0.0], color="black", linewidth=0.8, zorder=1)
        _box(ax, (0.2, -1.25), (NODE_WIDTH - 0.4, 0.45), joined_by(node), "switch")
    for y, kind in ((0.0, "GPUs"), (1.0, "NICs" if nics else "")):
        ax.text(-0.05, y, kind, fontsize=8, ha="right", va="center")
    more = f", {drawn} of {node.gpus} GPUs" if drawn < node.gpus else f", {node.gpus} GPUs"
    told = f"{node.nics} NICs of {node.nic_bytes_per_s / GB:g} GB/s" if nics else "no NIC is used"
    ax.text(0.1, -1.9, f"node 0{more}, {told}", fontsize=8, va="bottom")


def _draw_links(ax: Axes, node: Node, at: list[float]) -> None:
    from matplotlib.patches import Arc

    largest = max(bytes_per_s for _, _, bytes_per_s in node.links)
    for a, b, bytes_per_s in node.links:
        if max(a, b) < len(at):
            centre, width = (at[a] + at[b]) / 2, abs(at[a] - at[b])
            height = 2 * (0.3 + 1.2 * width / NODE_WIDTH)
            thick = 0.5 + 2.5 * bytes_per_s / largest
            ax.add_patch(Arc((centre, 0.0), width, height, theta1=180, theta2=360, linewidth=thick, zorder=1))
    ax.text(NODE_WIDTH - 0.1, -1.9, joined_by(node), fontsize=8, ha="right", va="bottom")


def _draw_levels(ax: Axes, cluster: ClusterSpec, levels: list[Level]) -> None:
    """From below: the other nodes, then of each level one switch and how many others there are."""
    if cluster.nodes > 1:
        paths = paths_of(cluster)
        near = sum(path == paths[0] for path in paths) - 1
        told = f"{cluster.nodes - 1:,} more nodes" + (f",\n{near:,} on the same {levels[0].name}" if near else "")
        _box(ax, (NODE_WIDTH + 0.6, -2.0), (WIDTH - NODE_WIDTH - 0.6, 3.4), told, "rest")
    y, below = 1.4, cluster.node.nics * cluster.node.nic_bytes_per_s
    for number, level in enumerate(levels):
        top = y + 0.9
        both = number == 0 or levels[number - 1].switches > 1
        for x in (NODE_WIDTH / 2, (NODE_WIDTH + 0.6 + WIDTH) / 2) if both else (NODE_WIDTH / 2,):
            ax.plot([x, x], [y, top], color="black", linewidth=1.2, zorder=1)
        if below:
            ax.text(NODE_WIDTH / 2 + 0.15, (y + top) / 2, f"{below / GB:,.6g} GB/s", fontsize=8, va="center")
        alone = level.switches == 1
        _box(ax, (0.0, top), (WIDTH if alone else NODE_WIDTH, 0.7), level.name, "switch")
        if not alone:
            _box(ax, (NODE_WIDTH + 0.6, top), (WIDTH - NODE_WIDTH - 0.6, 0.7), f"{level.switches - 1:,} more", "rest")
        if level.across_bytes_per_s:
            ax.plot([NODE_WIDTH, NODE_WIDTH + 0.6], [top + 0.35] * 2, color="black", linewidth=2.0, zorder=1)
            told = f"{level.across_bytes_per_s / GB:,.6g} GB/s to the others"
            ax.text(WIDTH, top + 0.75, told, fontsize=8, ha="right", va="bottom")
        y, below = top + 0.7, level.up_bytes_per_s


def _frame(ax: Axes, corner: tuple[float, float], size: tuple[float, float]) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle(corner, *size, fill=False, linewidth=0.8, linestyle="--"))


def _box(ax: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, kind: str) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle(corner, *size, facecolor=COLOURS[kind], alpha=0.35, edgecolor="black", zorder=2))
    ax.text(corner[0] + size[0] / 2, corner[1] + size[1] / 2, text, fontsize=8, ha="center", va="center", zorder=3)


def _label(ax: Axes, x: float, y: float, text: str, kind: str) -> None:
    box = {"boxstyle": "round", "facecolor": COLOURS[kind], "alpha": 0.9, "edgecolor": "black"}
    ax.text(x, y, text, fontsize=8, ha="center", va="center", color="white", bbox=box, zorder=3)
