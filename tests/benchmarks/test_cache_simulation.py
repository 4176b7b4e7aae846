"""Waves on engines with a KV cache, simulated with what the product would have in flight."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("cache_simulation")


@pytest.mark.parametrize("card", ["H100", "H200", "A100-40", "L4"])
def test_in_waves_a_context_is_prefilled_once_on_every_card(simulation, card):
    outcomes = simulation.outcomes(simulation.CARDS[card], 100)
    assert outcomes["waves now"].prefills <= 1.05
    assert outcomes["waves now"].seconds < outcomes["waves before"].seconds
    if card == "H100":
        assert outcomes["waves before"].prefills > 1.5
        assert outcomes["waves now"].seconds <= 1.1 * outcomes["nine at once"].seconds
    assert outcomes["lower bound"].seconds <= outcomes["waves now"].seconds
