"""How the sequences of a step are dealt to micro-batches and data-parallel shards."""

from __future__ import annotations

from moeplan.spec.record import Record


class Batch(Record):
    """How the sequences of a step are dealt to micro-batches and data-parallel shards."""

    global_batch: int
    micro_batch: int
    shards: int
    """Data-parallel ranks over all copies."""
    microbatches: int


def batch(global_batch: int, micro_batch: int, shards: int) -> Batch:
    """The fewest micro-batches that hold `global_batch` sequences; the last one may be short."""
    capacity = micro_batch * shards
    return Batch(
        global_batch=global_batch,
        micro_batch=micro_batch,
        shards=shards,
        microbatches=-(-global_batch // capacity),
    )


def sequences(dealt: Batch, microbatch: int, shard: int) -> range:
    """Sequence numbers of `microbatch` on data-parallel `shard`; a short micro-batch is spread evenly."""
    capacity = dealt.micro_batch * dealt.shards
    first = microbatch * capacity
    count = min(capacity, dealt.global_batch - first)
    here, extra = divmod(count, dealt.shards)
    start = first + shard * here + min(shard, extra)
    return range(start, start + here + (shard < extra))
