"""What a layout is: which ranks hold what, and how rows travel between them.

A model is one chain of pieces (embedding, attention and experts of each layer, head). The chain is cut into virtual
stages; a stage lives at a position, a group of ranks that run the same operations. An edge joins two neighbouring
pieces and says how rows go from one to the next. Families (in `layouts/`) choose degrees and placement; all that
follows from a choice is derived in `assembly`, in one way for every family.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from moeplan.errors import SpecError
from moeplan.spec.model import ModelSpec
from moeplan.spec.record import Record

PieceKind = Literal["embedding", "attention", "experts", "dense", "join", "head"]
EdgeKind = Literal["local", "send", "dispatch", "combine", "m2n", "n2m"]
Side = Literal["attention", "ffn"]
Module = Literal["core_attention", "norm", "activation", "latent_up", "dense", "shared_experts", "every_other_product"]
FAN_IN = ("combine", "n2m")


class Colocated(Record, tag_field="family", tag="colocated"):
    """Every rank holds attention and experts: TP x CP x DP for attention, ETP x EP x EDP for experts, in PP stages."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    """Virtual stages per position."""
    ep: int = 1
    etp: int = 1
    dp: int = 1
    """Data-parallel ranks of attention; `copies` of the whole pipeline follow from it."""
    micro_batch: int = 1
    """Sequences per data-parallel rank and micro-batch."""
    split: tuple[int, ...] = ()
    """Layers of each of the pp * vpp virtual stages; empty cuts them as evenly as can be, larger ones first."""


class Piper(Record, tag_field="family", tag="piper"):
    """PP x EP ranks: TP = 1, attention data-parallel inside an expert group, which one node or one switch holds."""

    pp: int = 1
    vpp: int = 1
    """Virtual stages per position."""
    ep: int = 1
    dp: int = 1
    """Copies of the whole PP x EP mesh; the paper's own has one."""
    micro_batch: int = 1
    """Sequences per rank and micro-batch."""
    split: tuple[int, ...] = ()
    """As `Colocated.split`."""


class Disaggregated(Record, tag_field="family", tag="disaggregated"):
    """Attention and FFN on disjoint ranks: `pairs` groups of each, layer l on attention and FFN group l mod pairs."""

    pairs: int = 1
    attention_gpus: int = 1
    """Ranks of all attention groups of one copy together."""
    ffn_gpus: int = 1
    """Ranks of all FFN groups of one copy together."""
    attention_nics: int = 0
    ffn_nics: int = 0
    dp: int = 1
    """Copies of the whole pipeline, attention and FFN included."""
    micro_batch: int = 1
    """Sequences per attention rank and micro-batch."""
    deduplicate: bool = False
    """Whether M2N sends one row per token and node instead of one per token and expert."""
    depth: int = 1
    """Transfers counted as pipeline latency when the order is made: warm-up is `depth` times deeper."""


Layout = Colocated | Piper | Disaggregated
Mesh = Colocated | Piper


class Recompute(Record):
    """What is computed again in the backward pass instead of being kept, for the attention and the FFN side."""

    attention: Literal["none", "full"] = "none"
    """`full` keeps only the input of an attention piece."""
    ffn: Literal["none", "experts", "full"] = "none"
    """`experts` keeps the rows that experts received; `full` keeps nothing and dispatches again."""
    modules: tuple[Module, ...] = ()
    """Single modules whose inner values are computed again inside the backward of a piece that is kept.

    core_attention: scores, where they are kept at all; norm: outputs of norms; activation: what enters the last matrix
    of an FFN; latent_up: queries, keys and values of latent attention; dense, shared_experts: inner values of those
    FFNs; every_other_product: all but the core attention's output and the outputs of every second matrix product, the
    first included (torchtitan's selective checkpointing by operation).
    """


class Position(Record):
    """Ranks that run the same operations."""

    name: str
    ranks: tuple[tuple[int, ...], ...]
    """[copy][index]: one group of ranks per copy of the pipeline."""
    spread: Literal["sequence", "token"]
    """How the tokens of a micro-batch lie on these ranks: whole sequences, or token number modulo group size."""


class Piece(Record):
    """One link of the chain."""

    kind: PieceKind
    layer: int
    stage: int


class Edge(Record):
    """How rows go from piece i to piece i + 1."""

    kind: EdgeKind
    algorithm: Literal["none", "p2p", "flat", "two_level", "halo", "halo_chunked", "fastest", "deduplicated"] = "none"
    """fastest: what costs least of flat, two_level, halo and halo_chunked, before a plan names one."""


class Replica(Record):
    """Who holds the same parameters, sums their gradients and (when sharded) shares their optimizer state."""

    parameters: Literal["dense", "experts", "ffn_norm", "embedding"]
    positions: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    """Each rank of these positions stands in exactly one group."""
    sharded: bool


class StageGraph(Record):
    """What a family says: everything else is derived from this."""

    positions: tuple[Position, ...]
    stages: tuple[tuple[int, ...], ...]
    """Positions of each virtual stage; micro-batch m of stage s lives at stages[s][m % len(stages[s])]."""
    pieces: tuple[Piece, ...]
    edges: tuple[Edge, ...]
    """edges[i] joins pieces[i] and pieces[i + 1]."""
    replicas: tuple[Replica, ...]
    tp: int = 1
    cp: int = 1
    """Ranks that hold parts of the same sequences."""
    etp: int = 1
    ep: int = 1
    """Shards of the experts of one piece."""
    shared_side: Literal["attention", "ffn"] = "attention"
    """Where shared experts are computed."""


def home(graph: StageGraph, stage: int, microbatch: int) -> int:
    """The position at which `microbatch` passes `stage`."""
    homes = graph.stages[stage]
    return homes[microbatch % len(homes)]


def pieces_of(graph: StageGraph, stage: int) -> list[int]:
    """Numbers of the pieces of `stage`, in chain order."""
    return [i for i, piece in enumerate(graph.pieces) if piece.stage == stage]


def rides(graph: StageGraph, piece: int) -> bool:
    """Whether the residual of experts or dense `piece` travels in its rows instead of waiting at the sender."""
    return piece > 0 and graph.edges[piece - 1].kind == "m2n"


def split_evenly(items: int, parts: int) -> list[int]:
    """`items` cut into `parts` counts that differ by at most one, larger ones first."""
    return [items // parts + (i < items % parts) for i in range(parts)]


Exchange: TypeAlias = Literal["fastest", "flat", "two_level", "halo", "halo_chunked"]
EXCHANGES: tuple[Exchange, ...] = ("fastest", "flat", "two_level", "halo", "halo_chunked")


def shard_of(graph: StageGraph, copy: int, index: int) -> int:
    """Data-parallel shard of the rank at `index` of a `sequence` position in `copy`."""
    per_shard = graph.tp * graph.cp
    return copy * (len(graph.positions[0].ranks[0]) // per_shard) + index // per_shard


def expert_shard(graph: StageGraph, index: int) -> int:
    """Which share of the experts the rank at `index` of its position holds."""
    return index // graph.etp % graph.ep


def experts_of(model: ModelSpec, graph: StageGraph, index: int) -> range:
    """Experts of each MoE piece that the rank at `index` of an FFN position holds; uneven shares differ by one."""
    counts = split_evenly(model.experts, graph.ep)
    shard = expert_shard(graph, index)
    start = sum(counts[:shard])
    return range(start, start + counts[shard])


def check_positive(layout: Layout) -> None:
    """SpecError with the first degree that is less than 1; a side may have no NICs."""
    for name in layout.__struct_fields__:
        value = getattr(layout, name)
        if name not in ("attention_nics", "ffn_nics", "deduplicate", "split") and value < 1:
            raise SpecError(f"layout: {name} {value} must be at least 1")
