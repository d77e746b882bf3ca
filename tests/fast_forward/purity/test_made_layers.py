"""Layers of Keras' own that a step makes and calls: `Add()([x, y])`, `keras.layers.concatenate([x, y])`. Where they have no weights, the step is skipped, though it makes them each time."""

import functools
import sys

import keras
import pytest
import tf_keras

from terra.runtime.fast_forward.purity.facts import bytecode
from tests import harness
from tests.fast_forward.purity import making_layers, training

code = training.as_library(making_layers)


def made(body, layers, change=None, code=making_layers):
    def begin():
        for package in (keras, tf_keras):
            package.backend.clear_session()
        return code.Held()

    def look(held):
        # What is made later has the names that it has eagerly.
        return [held.w, held.names, layers.Add().name, layers.Activation("relu").name]

    return training.training(begin, functools.partial(getattr(code, body.__name__), layers), look, change, 0.1)


@pytest.mark.all_variants
@pytest.mark.parametrize("layers", [keras.layers, tf_keras.layers], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("body", [making_layers.adds, making_layers.adds_by_function, making_layers.several, making_layers.in_a_function, making_layers.reads_a_setting])
@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
def test_layers_that_a_step_makes(body, layers, verify, code):
    harness.compare_steps(made(body, layers, code=code), whole=14, express=0, verify=verify)


@pytest.mark.all_variants
@pytest.mark.parametrize("body", [
    making_layers.has_weights, making_layers.calls_twice, making_layers.asks_afterwards, making_layers.names_itself, making_layers.kept, making_layers.kept_beside_a_constant])
def test_what_is_not_skipped(body, code):
    """New weights are others each time; of a layer that was called more may be asked than of one that was not."""
    harness.compare_steps(made(body, tf_keras.layers, code=code), whole=0, express=0)


def test_a_setting_that_changes():
    harness.compare_steps(made(making_layers.reads_a_setting, keras.layers, lambda held, k: setattr(held, "kind", "tanh" if k >= 22 else "relu")), whole=10, express=0)


def test_the_type_that_layers_compute_with_changes():
    """It is what a layer is made with, though nothing of it stands in the program."""
    def change(held, k):
        keras.config.set_dtype_policy("mixed_float16" if k >= 22 else "float32")

    try:
        harness.compare_steps(made(making_layers.adds, keras.layers, change), whole=10, express=0)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.all_variants
@pytest.mark.parametrize("text, instrumented, at_once", [
    ("shown(make())(x)", False, True), ("shown(make(name=x))(x)", False, True), ("shown(keep(make()))(x)", False, False), ("shown(keep(make(), 1))(x)", False, False),
    ("shown(0, leave(make(), 2))(x)", True, True), ("shown(0, leave(make(name=x), 2))(x)", True, True), ("shown(0, keep(leave(make(), 2), 3))(x)", True, False),
    ("y = make()\nshown(y)(x)", False, False)])
def test_what_bytecode_tells_of_a_call(text, instrumented, at_once):
    """A function that gives back what it was given, and may have kept it, may stand between."""
    places = {}

    def note(name):
        def called(*args, **kwargs):
            places[name] = sys._getframe(1).f_code, sys._getframe(1).f_lasti
            return lambda x: x
        return called

    def first(it, *more):
        return it

    exec(compile(text, "program", "exec"), {"make": note("made"), "shown": note("shown"), "keep": first, "leave": first, "x": 1})
    (code, made), (_, called) = places["made"], places["shown"]
    assert bytecode.is_called_next(code, made, called, instrumented) is at_once
