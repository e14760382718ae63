"""What one piece of the chain computes for one micro-batch on one rank: FLOP and HBM bytes, no seconds.

T tokens of a rank lie in sequences of s tokens; R rows are token copies that its experts receive. FLOP are 2 per
multiply-add; attention is causal. Left out: softmax, rotary embedding, top-k and the optimizer's arithmetic, all bound
by the bytes counted as stream; biases and learned logits, which add one operation to a row's thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from moeplan.resources import attention, mixer, passes
from moeplan.resources.flop import STEP, forward_flop
from moeplan.resources.kernels import ELEMENT_BYTES as ELEMENT_BYTES
from moeplan.resources.kernels import Compute as Compute
from moeplan.resources.kernels import backward as backward
from moeplan.resources.kernels import product, stream
from moeplan.resources.parameters import ffn_matrices
from moeplan.spec.execution import Execution
from moeplan.spec.model import STATE, GroupedQuery, Latent, ModelSpec, row_width, shared_width

PLAIN = Execution()


class Load(NamedTuple):
    """What one rank has to do for one micro-batch."""

    tokens: float
    rows: float
    """Token copies that reach the rank's experts; balanced routing."""
    tp: int = 1
    etp: int = 1
    local_experts: float = 1.0
    whole: bool = False
    """Whether each tensor-parallel rank has all rows between its blocks: no sequence parallelism."""

    @property
    def own(self) -> float:
        """Tokens whose rows a rank has between tensor-parallel blocks."""
        return self.tokens if self.whole else self.tokens / self.tp


class _Around(NamedTuple):
    """What every kernel of a piece is counted with."""

    model: ModelSpec
    load: Load
    size: int
    """Bytes of an element."""
    execution: Execution
    seq_len: int
    window: int
    moe: bool


def forward(  # noqa: PLR0913 - what a piece is, and how it is carried out
    model: ModelSpec,
    kind: str,
    load: Load,
    *,
    seq_len: int,
    dtype: str,
    moe: bool = True,
    window: int = 0,
    execution: Execution = PLAIN,
) -> list[Compute]:
    """Kernels of the forward pass of one piece of `kind`, or of the part "router" of an attention piece.

    `moe` tells attention whether a router follows it, `window` how many tokens it sees (0: all before; `STATE`: it is
    the model's mixer), `execution` what linear layers multiply in, which passes are fused and what needs no launch.
    """
    around = _Around(model, load, ELEMENT_BYTES[dtype], execution, seq_len, window, moe)
    work = _PIECES[kind](around)
    static = execution.graphs == "step" or (execution.graphs == "layers" and kind != "experts")
    return [w._replace(launches=0.0, backward_launches=0.0) for w in work] if static else work


def named(module: str, work: list[Compute]) -> list[Compute]:
    """`work` as what `module` is."""
    return [kernel._replace(module=module) for kernel in work]


def again(work: list[Compute], modules: Sequence[str]) -> list[Compute]:
    """Of the forward kernels `work`, those that a backward runs once more where `modules` are recomputed.

    every_other_product: all passes, and half of every product.
    """
    if "every_other_product" in modules:
        halved = [k._replace(flop=k.flop / 2, hbm_bytes=k.hbm_bytes / 2) for k in work if "gemm" in k.kind]
        return [*(kernel for kernel in work if kernel.kind == "stream"), *halved]
    return [kernel for kernel in work if kernel.module in modules]


LATENT_UP = ("query", "key-value up")
"""Projections of latent attention that lead up from narrow vectors."""


def model_flop_per_token(model: ModelSpec, seq_len: int) -> float:
    """FLOP of one token's forward and backward pass, the numerator of MFU: 6 per active matrix parameter + attention.

    `flop.forward_flop` three times, causal half, with the router: what the kernels of `forward` and `backward` count,
    but for the core's scores that FlashAttention computes again.
    """
    return STEP * forward_flop(model, seq_len)


def _embedding(a: _Around) -> list[Compute]:
    return [stream(2 * a.load.tokens * a.model.hidden * a.size)]


def _join(a: _Around) -> list[Compute]:
    return [stream(3 * a.load.tokens * a.model.hidden * a.size)]


def _head(a: _Around) -> list[Compute]:
    """Norm, logits in the workload's type, and the loss over them."""
    tokens, columns = a.load.tokens, a.model.vocab / a.load.tp
    return [
        _pass(a, passes.NORM, a.load.own * a.model.hidden),
        product(tokens, a.model.hidden, columns, a.size),
        passes.elementwise(passes.LOSS_BYTES[a.execution.loss], tokens * columns, 1),
    ]


def _dense(a: _Around) -> list[Compute]:
    load, model = a.load, a.model
    norm = _pass(a, passes.NORM, load.own * model.hidden)
    inside = _ffn(a, load.tokens, model.hidden, model.dense_width / load.tp)
    return [*named("norm", [norm]), *named("dense", inside[:-1]), inside[-1]]


def _experts(a: _Around) -> list[Compute]:
    load, width = a.load, row_width(a.model)
    return [
        *passes.sorted_again(load.rows, width, a.size, load.local_experts, a.execution),
        *_ffn(a, load.rows, width, a.model.expert_width / load.etp, load.local_experts),
    ]


def _attention(a: _Around) -> list[Compute]:
    """Norm, projections and core, or the mixer in its place, and what of an MoE layer own tokens pass."""
    load = a.load
    (norm,) = named("norm", [_pass(a, passes.NORM, load.own * a.model.hidden)])
    inside = _mixer(a) if a.window == STATE else [*_projections(a, attention.projections(a.model)), *_core(a)]
    if not a.moe:
        return [norm, *inside]
    return [norm, *inside, norm, *_router(a)]


def _projections(a: _Around, matrices: Sequence[attention.Projection]) -> list[Compute]:
    """GEMMs of the attention block; those that every rank holds whole work on a rank's own tokens."""
    work = []
    for _, group in groupby(matrices, key=lambda p: p.kernel):
        parts = list(group)
        shapes = [attention.rank_shape(p, a.load.tp) for p in parts]
        rows = a.load.tokens if parts[0].heads else a.load.own
        linear = _linear(a, rows, shapes[0][0], sum(outputs for _, outputs in shapes))
        up = parts[0].kernel in LATENT_UP and parts[0].inputs != a.model.hidden
        work += named("latent_up", linear) if up else linear
    return work


def _core(a: _Around) -> list[Compute]:
    """Rotary embedding and inner norms; scores and values in one kernel (FlashAttention): no score reaches the HBM.

    Otherwise as products that skip no masked pair, outside a window neither, at the rate of that kernel (assumed).
    """
    shape, tokens, widths = a.model.attention, a.load.tokens, attention.core(a.model, a.load.tp)
    chunked = isinstance(shape, GroupedQuery) and shape.chunked
    pairs = tokens * attention.pairs_per_token(a.seq_len, a.window, chunked=chunked)
    core = Compute(
        "attention",
        2 * pairs * (widths.queries + widths.output),
        tokens * sum(widths) * a.size,
        sequence=min(a.window or a.seq_len, a.seq_len),
        head_dim=_head_dim(shape),
    )
    gate = [_pass(a, passes.GATED, tokens * widths.output)] if attention.gated_output(a.model) else []
    if a.execution.flash_attention:
        return [*_before_core(a, widths), core, *gate]
    every = tokens * a.seq_len
    whole = core._replace(flop=2 * every * (widths.queries + widths.output), sequence=a.seq_len)
    return [*_before_core(a, widths), *named("core_attention", [whole, _scores(a, every)]), *gate]


def _before_core(a: _Around, widths: attention.Core) -> list[Compute]:
    tokens, turned = a.load.tokens, widths.queries + widths.keys
    work = [_pass(a, passes.ROTATED, tokens * turned * _turned_share(a.model))]
    if attention.normed(a.model):
        work.append(_pass(a, passes.NORMED, tokens * turned))
    if isinstance(a.model.attention, Latent):
        work.append(_pass(a, passes.NORMED, a.load.own * attention.narrow(a.model)))
        work.append(_pass(a, passes.COPIED, tokens * turned))
    return work


def _turned_share(model: ModelSpec) -> float:
    """Share of queries and keys that have a position: in latent attention only a part of each head's."""
    shape = model.attention
    return shape.rope_head_dim / (shape.nope_head_dim + shape.rope_head_dim) if isinstance(shape, Latent) else 1.0


def _head_dim(shape: GroupedQuery | Latent) -> float:
    """Mean width of the products of scores and of values."""
    if isinstance(shape, Latent):
        return (shape.nope_head_dim + shape.rope_head_dim + shape.v_head_dim) / 2
    return shape.head_dim


def _scores(a: _Around, pairs: float) -> Compute:
    """Scores outside the attention kernel, of all `pairs` of queries and keys, masked ones included."""
    return _pass(a, passes.SCORES, pairs * a.model.attention.heads / a.load.tp)


def _mixer(a: _Around) -> list[Compute]:
    """Projections around convolution and scan; both at the rate of products over one chunk."""
    model, load = a.model, a.load
    matrices = mixer.projections(model)
    before, after = ([p for p in matrices if p.from_heads == last] for last in (False, True))
    flop = load.tokens * (mixer.scan_flop(model, load.tp) + mixer.conv_flop(model, load.tp))
    moved = load.tokens * mixer.stream_elements(model, load.tp) * a.size
    chunk = flop / max(2 * load.tokens * SCAN_CHUNK, 1e-9)
    scan = product(load.tokens, SCAN_CHUNK, chunk, a.size)._replace(hbm_bytes=0.0)
    return [*_projections(a, before), scan, stream(moved, None, 6.0, 12.0), *_projections(a, after)]


SCAN_CHUNK = 128
"""Tokens of a chunk of the scan, the inner width of its products."""


def _router(a: _Around) -> list[Compute]:
    """Router with the gate of the shared experts as one more column, sorting, and shared experts."""
    model, load, hidden = a.model, a.load, a.model.hidden
    own, width = load.own, row_width(a.model)
    logits, launches = own * model.experts, passes.ROUTER_LAUNCHES[passes.JOINED[a.execution.kernels]]
    work = [
        product(own, hidden, model.experts + model.shared_gate, a.size),
        stream(passes.ROUTER_BYTES * logits, passes.ROUTER_BYTES * logits, launches),
        passes.permuted(own, model.top_k, width, a.size, a.execution),
    ]
    if model.expert_latent:
        work += [*_linear(a, own, hidden, width), *_linear(a, own, width, hidden)]
    if model.shared_experts:
        shared = _ffn(a, load.tokens, hidden, shared_width(model) / load.tp)
        work += [*named("shared_experts", shared[:-1]), shared[-1]]
    return work


def _linear(
    a: _Around, rows: float, inner: float, columns: float, sets: float = 1.0, *, grouped: bool = False
) -> list[Compute]:
    """One linear layer, or one for each of `sets` experts, and the casts that a narrow type needs."""
    operand = passes.operand_bytes(a.execution)
    kernel = product(rows, inner, columns, a.size, groups=sets, operand=operand, grouped=grouped)
    return [*passes.quantised(rows, inner, columns, a.execution, sets), kernel]


def _ffn(a: _Around, rows: float, hidden: float, width: float, experts: float | None = None) -> list[Compute]:
    """Gate and up (or up alone), activation, down; `rows` are spread over `experts`, whose weights are all read."""
    ups, sets, grouped = ffn_matrices(a.model) - 1, experts or 1.0, experts is not None
    rule = passes.GATED if a.model.gated else passes.UNGATED
    each = sets if a.execution.kernels == "eager" else 1.0
    return [
        *_linear(a, rows, hidden, ups * width, sets, grouped=grouped),
        *named("activation", [_pass(a, rule, rows * width, each)]),
        *_linear(a, rows, width, hidden, sets, grouped=grouped),
    ]


def _pass(a: _Around, rules: dict[str, passes.Rule], elements: float, launches: float = 1.0) -> Compute:
    return passes.elementwise(rules[passes.JOINED[a.execution.kernels]], elements, a.size, launches)


_PIECES: dict[str, Callable[[_Around], list[Compute]]] = {
    "embedding": _embedding,
    "join": _join,
    "head": _head,
    "dense": _dense,
    "experts": _experts,
    "attention": _attention,
    "router": _router,
}
