"""Public names: all there, and the same however much of the package is loaded."""

from importlib.util import find_spec
from types import ModuleType

import pytest

import moeplan as mp


@pytest.mark.parametrize("name", mp.__all__)
def test_public_names_are_there_and_no_module_hides_them(name):
    """A module that is loaded becomes an attribute of its package: none may have the name of a public function."""
    assert not isinstance(getattr(mp, name), ModuleType)
    assert name in dir(mp)
    assert find_spec(f"moeplan.{name}") is None


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'optimise'"):
        _ = mp.optimise
