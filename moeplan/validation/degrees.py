"""The layout of a row: its degrees, and what is taken where nothing was published."""

from __future__ import annotations

import re

from moeplan.by_hand import ByHand
from moeplan.spec.model import ModelSpec
from moeplan.validation.negation import says
from moeplan.validation.outcome import Skip
from moeplan.validation.tables import Run

SEQ_LEN = 4096
"""Where no sequence length is published (assumed; the commonest of the tables)."""
LONGEST_LAYOUT = 10_000
"""Letters of a layout that is written out: one per layer, and one between stages."""
MICROBATCHES_PER_STAGE = 4
"""Where no global batch is published: 4 pp micro-batches, so that the pipeline is full (assumed)."""
LAYERS_PER_CHUNK = 2
"""Where a source says "interleaved" and no number of virtual stages: as many as leave 2 layers to each (assumed)."""


def degrees(run: Run, model: ModelSpec) -> ByHand:
    """The layout of the row; what was not published is 1, ETP is TP, EP and virtual stages as told below."""
    if run.pp is None and run.vpp:
        raise Skip("virtual stages without pipeline stages", f"vpp: {run.vpp} virtual stages, and pp is empty")
    pp, vpp = run.pp or 1, virtual_stages(run, model)
    return ByHand(
        tp=run.tp,
        cp=run.cp,
        pp=run.pp,
        vpp=vpp if pp > 1 else None,
        ep=(run.ep or expert_parallel(run, model)) if model.experts else None,
        etp=run.etp,
        micro_batch=run.micro_batch or 1,
        split=stage_layers(run, model, pp * vpp) or None,
    )


def expert_parallel(run: Run, model: ModelSpec) -> int:
    """EP where none is published: 1 without experts, else the largest that divides them and 8 GPUs of a stage."""
    per_stage = run.gpus // (run.pp or 1)
    fits = [d for d in range(1, 9) if model.experts % d == 0 and per_stage % (d * (run.etp or run.tp or 1)) == 0]
    return max(fits, default=1) if model.experts else 1


def virtual_stages(run: Run, model: ModelSpec) -> int:
    """Virtual stages per pipeline stage: as published, fewer where not each would have a layer; see `usual_stages`."""
    pp = run.pp or 1
    if pp == 1:
        return 1
    asked = run.vpp or usual_stages(run, model)
    if pp * asked <= model.num_layers:
        return asked
    if pp * asked > model.num_layers + 2:
        return asked  # refused where the layout is made: not even the embedding and the head are stages of their own
    even = [v for v in range(1, asked) if model.num_layers % (pp * v) == 0 or (model.num_layers + 2) % (pp * v) == 0]
    return max(even, default=1)


def usual_stages(run: Run, model: ModelSpec) -> int:
    """Virtual stages where none are published: 1, or `LAYERS_PER_CHUNK` layers each where the row says interleaved."""
    if not says("interleaved", run.dispatcher_or_overlap.lower()):
        return 1
    return max(1, round((model.num_layers + 2) / ((run.pp or 1) * LAYERS_PER_CHUNK)))


def stage_layers(run: Run, model: ModelSpec, stages: int) -> tuple[int, ...]:
    """Layers of each stage as Megatron-LM cuts them; empty for even cuts.

    A layout that the row writes out is taken. Otherwise, where embedding and head as a layer each make the cut even,
    the first and the last stage have one layer less; else stages are filled up and the last has what is left. Where
    nothing would be left, stages with one layer less are the last position's, which has the head beside them.
    """
    told = re.search(r"layout (E\S+L)", f"{run.dispatcher_or_overlap} {run.notes}")
    if told and len(counts := written_layout(told[1])) == stages and sum(counts) == model.num_layers:
        return counts
    layers = model.num_layers
    if stages == 1 or layers % stages == 0:
        return ()
    each = (layers + 2) // stages
    if (layers + 2) % stages == 0 and each > 1:
        return (each - 1, *[each] * (stages - 2), each - 1)
    each = -(-layers // stages)
    rest = layers - each * (stages - 1)
    if rest > 0:
        return (*[each] * (stages - 1), rest)
    if each == 1:
        return ()
    pp = run.pp or stages
    shorter = sorted(range(stages), key=lambda stage: (stage % pp != pp - 1, -stage))[: each * stages - layers]
    return tuple(each - (stage in shorter) for stage in range(stages))


def written_layout(text: str) -> tuple[int, ...]:
    """Layers of each stage of a layout of Megatron-LM: "Et*4|(t*5|)*3,t*4mL" is 4, 5, 5, 5, 4.

    Skip where it is longer than `LONGEST_LAYOUT` letters.
    """
    _repeated(text, 1)
    while (group := re.search(r"\(([^()]*)\)(?:\*(\d+))?", text)) is not None:
        text = text[: group.start()] + _repeated(group[1], int(group[2] or 1)) + text[group.end() :]
    repeated = re.sub(r"t\*(\d+)", lambda match: _repeated("t", int(match[1])), text)
    return tuple(stage.count("t") for stage in _repeated(repeated, 1).split("|"))


def _repeated(text: str, times: int) -> str:
    """`text` so many times; Skip where that is longer than any layout."""
    if len(text) * times > LONGEST_LAYOUT:
        raise Skip("layout: written out, it is longer than that of any model")
    return text * times


def seq_len(run: Run) -> int:
    """Tokens per sequence of the row."""
    return run.seq_len or SEQ_LEN


def global_batch(run: Run) -> int:
    """Sequences per step of the row; where none is published, enough that the pipeline is full."""
    pp = run.pp or 1
    data_parallel = max(1, run.gpus // ((run.tp or 1) * pp * (run.cp or 1)))
    return run.global_batch or MICROBATCHES_PER_STAGE * pp * data_parallel * (run.micro_batch or 1)
