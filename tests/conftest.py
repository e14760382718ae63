"""What all tests share: golden files, rewritten only on request."""

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what the code makes")


@pytest.fixture
def golden(request):
    """golden(name, text): `text` is the content of tests/golden/`name`."""

    def check(name, text):
        if request.config.getoption("--update-golden"):
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text()

    return check
