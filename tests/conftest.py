import pytest

import companion


@pytest.fixture(scope="session")
def minilm():
    return companion.load("minilm")


@pytest.fixture(scope="session")
def rxnmapper():
    return companion.load("rxnmapper")
