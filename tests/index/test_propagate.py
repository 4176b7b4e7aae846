import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohaku_ray.errors import TreeError
from kohaku_ray.index.propagate import fill_inner, unit_rows


def naive(vectors, parent, weight, fixed):
    """The definition, node by node."""
    n = len(parent)
    children = [[c for c in range(n) if parent[c] == i] for i in range(n)]

    def vector(i):
        if fixed[i]:
            return vectors[i].astype(float)
        pairs = [(weight[c], vector(c)) for c in children[i]]
        pairs = [(w, v) for w, v in pairs if v is not None]
        if not pairs:
            return None
        mean = sum(w * v for w, v in pairs) / sum(w for w, _ in pairs)
        return mean / np.linalg.norm(mean)

    return np.array([np.zeros(vectors.shape[1]) if (v := vector(i)) is None else v for i in range(n)])


def propagate(vectors, parent, weight, fixed):
    result = np.where(fixed[:, None], vectors, np.float32(0))
    fill_inner(result, parent, weight, fixed)
    return result


@st.composite
def trees(draw):
    n = draw(st.integers(1, 40))
    parent = np.array([draw(st.integers(-1, i - 1)) for i in range(n)], dtype=np.int64)
    leaf = np.ones(n, dtype=bool)
    leaf[parent[parent >= 0]] = False
    fixed = np.array([draw(st.integers(0, 9)) > (1 if leaf[i] else 7) for i in range(n)])
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    vectors = unit_rows(rng.normal(size=(n, 5)))
    weight = rng.integers(1, 400, n).astype(np.float32)
    return vectors, parent, weight, fixed


@given(trees())
def test_equals_the_definition(tree):
    vectors, _, _, fixed = tree
    got = propagate(*tree)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got[fixed], vectors[fixed])
    np.testing.assert_allclose(got, naive(*tree), atol=1e-5)


def test_nothing_below_gives_zeros_and_counts_for_nothing():
    vectors = np.array([[0, 0], [0, 0], [0, 0], [0, 1]], dtype=np.float32)
    fixed = np.array([False, False, False, True])
    got = propagate(vectors, np.array([-1, 0, 1, 0]), np.array([1, 50, 50, 1]), fixed)
    np.testing.assert_array_equal(got, [[0, 1], [0, 0], [0, 0], [0, 1]])


@pytest.mark.parametrize(
    ("parent", "weight", "message"),
    [
        ([-1, 2, 0], [1, 1, 1], "node row 1 has its parent at row 2"),
        ([-1, 0, 0], [1, -3, 1], "node row 1 has the weight -3"),
        ([-1, 0, 1, 1], [1, 1, 0, 0], "weights of the children of node row 1 sum to zero"),
    ],
)
def test_what_is_no_weighted_tree_is_refused(parent, weight, message):
    with pytest.raises(TreeError, match=message):
        propagate(np.ones((len(parent), 2), np.float32), *map(np.array, (parent, weight)), np.arange(len(parent)) > 1)
