"""Synthetic training data: the same tokens for a (seed, step, sequence) wherever they are asked for.

A sequence counts upward by a stride of its own, modulo the vocabulary, with one token in eight drawn at random: enough
structure for the loss to fall, enough noise for experts to differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch
from torch import Tensor

NOISE = 0.125


def generator(*key: object) -> torch.Generator:
    """A random generator that depends on nothing but `key`."""
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


def sequence(seed: int, step: int, number: int, *, seq_len: int, vocab: int) -> Tensor:
    """Tokens of one sequence and the one that follows it [seq_len + 1]."""
    random = generator("data", seed, step, number)
    start, stride = torch.randint(vocab, (2,), generator=random).tolist()
    counted = (start + (1 + stride % 4) * torch.arange(seq_len + 1)) % vocab
    drawn = torch.randint(vocab, (seq_len + 1,), generator=random)
    return torch.where(torch.rand(seq_len + 1, generator=random) < NOISE, drawn, counted)


def sequences(seed: int, step: int, numbers: Iterable[int], *, seq_len: int, vocab: int) -> Tensor:
    """Several sequences [n, seq_len + 1]; n may be 0."""
    rows = [sequence(seed, step, number, seq_len=seq_len, vocab=vocab) for number in numbers]
    return torch.stack(rows) if rows else torch.empty(0, seq_len + 1, dtype=torch.int64)
