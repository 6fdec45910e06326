"""Gradients that appear in backward while activations go."""

from simulator.memory.estimate import _appearing_gradients
from simulator.models.layer import Layer, Parameter


def layer(saved, transient, n_parameters):
    parameters = (Parameter(name="w", n_elements=n_parameters),)
    return Layer(
        name="block",
        forward=(),
        backward=(),
        parameters=parameters,
        saved_bytes=saved,
        transient_bytes=transient,
    )


def test_activations_larger_than_gradients_hide_them():
    assert _appearing_gradients([layer(100, 10, 1)] * 4, 4) == 0


def test_gradients_larger_than_activations_show_what_exceeds_them():
    # At the end all gradients are there; at its start, before the last layer, 3 of 4 beside one layer's activations.
    assert _appearing_gradients([layer(10, 0, 100)] * 4, 4) == 1600 - 40


def test_a_recomputed_first_layer_meets_all_later_gradients():
    # First layer's backward: its input (1), its rebuilt activations (500) and the gradients of three layers (1200).
    assert _appearing_gradients([layer(1, 500, 100)] * 4, 4) == (1 + 500 + 1200) - (4 + 500)
