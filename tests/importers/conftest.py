"""Small files in the format of each tool, written by hand."""

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "fixtures" / "importers"


@pytest.fixture
def fixture():
    """fixture(name): the path of tests/fixtures/importers/`name`."""

    def path(name):
        return FIXTURES / name

    return path
