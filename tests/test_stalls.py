"""A short form of `make stalls`: the worst inputs of a client, a model, an upstream and a tool do not hold a worker."""

import pytest

from bench.inputs import INPUTS
from bench.stalls import HELD_SECONDS, hostile_world, measure

# Processor time hardly depends on what else runs, but a cold or shared core may take several times as long as the
# machine on which the bound was measured. Each of these inputs has held a worker for seconds.
GENEROUS = 5


@pytest.mark.parametrize(
    "name",
    ["tool-blocks", "sealed-thoughts", "bad-objects", "streamed-leaks", "long-call", "small-pieces", "packed-search"],
)
def test_a_worst_input_does_not_hold_a_worker(name):
    with hostile_world() as (world, port):
        figures = measure(name, INPUTS[name].size * 2, world, port)

    assert figures.status not in (0, 500)
    assert figures.held < GENEROUS * HELD_SECONDS
