import pytest
from small_index import FakeEncoder, index_documents, make_documents


@pytest.fixture
def build():
    return index_documents


@pytest.fixture
def documents():
    return make_documents


@pytest.fixture
def fake_encoder():
    return FakeEncoder
