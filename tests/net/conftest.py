"""Makes `emulated`, and `cases` of the executor, importable beside these tests; networks that close with their test."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "exec")]


@pytest.fixture
def make_network():
    """make_network(**shape): an emulated network; skips, with the reason, where this machine does not allow one."""
    from emulated import Shape, Unavailable, emulated

    with ExitStack() as stack:

        def make(**shape):
            try:
                return stack.enter_context(emulated(Shape(**shape)))
            except Unavailable as reason:
                pytest.skip(str(reason))

        yield make
