"""Whole steps are skipped only where nothing of what the containers hold that they use has changed, and where they change no container of the program's."""
import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import terra

OTHER = tf.constant([[0.25, 0.5], [0.125, 2.0]])  # a tensor that is an argument as well is another matter: see test_lifetimes
X = tf.constant([[1.0, 2.0], [3.0, 4.0]])


def run(build, wrap):
    """What 14 calls give, with a change before the ninth, and what is left."""
    step, change, state = build()
    step = wrap(step)
    seen = []
    for k in range(14):
        if k == 8:
            change()
        seen.append(tf.nest.map_structure(lambda x: x.numpy().tolist() if tf.is_tensor(x) else x, step(X)))
    return seen, state(), step


def nothing():
    pass


# ------------------------------------------------------------------------------------------ what is left in containers

def keeps(act, make):
    """A step that changes a container that it gets at in some way."""
    def build():
        held = make()

        def step(x):
            act(held)
            return tf.tanh(x)

        return step, nothing, lambda: held
    return build


def popped(held):
    held["a"].pop()


def added_in_place(held):
    q = held["a"]
    q += [5]


def stored(held):
    q = held["a"]
    q[0] = q[0] + 1


def counted(held):
    d = held.get("n")
    d["k"] = d["k"] + 1


def deleted(held):
    q = held["a"]
    del q[0]


def appended_to_the_next(held):
    next(iter(held["lists"])).append(1)


def appended_to_the_longest(held):
    max(held["lists"]).append(1)


def stored_through_a_view(held):
    np.reshape(held["array"], [-1])[0] = held["array"][0, 0] + 1.0


def stored_through_itself(held):
    np.asarray(held["array"])[0, 0] = held["array"][0, 0] + 1.0


CHANGES = {
    "append": lambda held: held["a"].append(1), "append_to_an_item": lambda held: held["lists"][0].append(1),
    "append_behind_a_slice": lambda held: held["lists"][:1][0].append(1), "append_in_a_tuple": lambda held: held["tuple"][0].append(1),
    "pop": popped, "in_place": added_in_place, "store": stored, "get": counted, "del": deleted, "next": appended_to_the_next, "max": appended_to_the_longest,
    "get_and_append": lambda held: held.get("a").append(1), "setdefault": lambda held: held.setdefault("new", []).append(1),
    "set": lambda held: held["set"].add(len(held["set"])), "view": stored_through_a_view, "asarray": stored_through_itself,
    "sum_of_nothing": lambda held: sum([], held["a"]).append(1), "or": lambda held: (held["a"] or []).append(1),
    "values": lambda held: next(iter(held["n"].values())), "counter": lambda held: held["counter"].update("a"),
}


SKIPPED = ("values", "append", "append_to_an_item", "append_behind_a_slice", "append_in_a_tuple", "next", "get_and_append", "counter", "pop", "setdefault", "in_place", "del")  # which change it by calls that can be made again


@pytest.mark.parametrize("name", CHANGES)
def test_a_container_that_is_changed(name):
    def make():
        return {"a": [0] * 40, "n": {"k": 0}, "lists": [[3], [2]], "tuple": ([],), "set": set(), "array": np.zeros((2, 2)), "counter": collections.Counter()}

    build = keeps(CHANGES[name], make)
    expected, left, _ = run(build, lambda step: step)
    actual, ours, step = run(build, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and repr(ours) == repr(left)
    assert step.stats().coexecuted_steps >= 10 and (step.stats().whole_steps == 0 or name in SKIPPED)


# --------------------------------------------------------------------------------- what is read, or given to the framework

ARRAY = np.ones((2, 2), "float32")
READS = {
    "item": (lambda: {"rates": [1.0, 2.0]}, lambda held, x: x * held["rates"][0], lambda held: held["rates"].__setitem__(0, 5.0)),
    "len": (lambda: {"rates": [1.0]}, lambda held, x: x * float(len(held["rates"])), lambda held: held["rates"].append(5.0)),
    "sum": (lambda: {"rates": [1.0]}, lambda held, x: x * sum(held["rates"]), lambda held: held["rates"].append(5.0)),
    "not": (lambda: {"rates": []}, lambda held, x: x if not held["rates"] else -x, lambda held: held["rates"].append(5.0)),
    "nested_get": (lambda: {"a": {"b": 2.0}}, lambda held, x: x * held.get("a").get("b"), lambda held: held["a"].update(b=3.0)),
    "next": (lambda: [[1.0]], lambda held, x: x * next(iter(held))[0], lambda held: held[0].__setitem__(0, 7.0)),
    "axis": (lambda: [0], lambda held, x: tf.reduce_sum(x, axis=held), lambda held: held.append(1)),
    "operand": (lambda: ARRAY.copy(), lambda held, x: tf.multiply(x, held), lambda held: held.fill(3.0)),
    "constant": (lambda: [[1.0], [2.0]], lambda held, x: x + tf.constant(held), lambda held: held[0].__setitem__(0, 9.0)),
    "constant_array": (lambda: ARRAY.copy(), lambda held, x: x + tf.constant(held), lambda held: held.fill(3.0)),
    "cast": (lambda: [1, 2], lambda held, x: x + tf.cast(held, tf.float32), lambda held: held.__setitem__(0, 9)),
    "shape": (lambda: [4, 1], lambda held, x: tf.reshape(x, held), lambda held: held.reverse()),
    "stack": (lambda: [X, X], lambda held, x: tf.stack([x, *held]), lambda held: held.append(X)),
    "add_n": (lambda: [OTHER, OTHER], lambda held, x: x + tf.add_n(held), lambda held: held.append(OTHER)),
    "in_a_display": (lambda: [1.0, 2.0], lambda held, x: x + tf.constant([held, held]), lambda held: held.__setitem__(0, 4.0)),
    "keyword": (lambda: {"axis": [0]}, lambda held, x: tf.reduce_sum(x, **held), lambda held: held["axis"].append(1)),
    "layer": (lambda: [X, X], lambda held, x: ADD(held) + x, lambda held: held.__setitem__(0, -X)),
}
ADD = tf.keras.layers.Add()


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("where", ["step", "inner", "method"])
def test_what_is_read_of_a_container_that_changes(name, where):
    make, use, change = READS[name]
    prints = []

    def build():
        held = make()

        def inner(x):
            return tf.tanh(use(held, x)) * 2.0

        class Trainer:
            def train(self, x):
                return tf.tanh(use(held, x))

        def step(x):
            if where == "inner":
                prints.append(len(prints))
                return inner(x)
            return tf.tanh(use(held, x))

        return Trainer().train if where == "method" else step, lambda: change(held), lambda: None

    expected, _, _ = run(build, lambda step: step)
    actual, _, step = run(build, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected
    assert step.stats().coexecuted_steps >= 8


@pytest.mark.parametrize("name", ["item", "len", "sum", "axis", "operand", "constant", "shape", "add_n", "keyword"])
def test_it_is_skipped_while_nothing_changes(name):
    make, use, _ = READS[name]

    def build():
        held = make()
        return lambda x: tf.tanh(use(held, x)), nothing, lambda: None

    expected, _, _ = run(build, lambda step: step)
    actual, _, step = run(build, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().whole_steps >= 6


def test_containers_of_its_own_do_not_matter():
    def build():
        def step(x):
            parts, table = [], {}
            for k in range(3):
                parts.append(x * float(k))
                table[k] = [k]
                table.get(k).append(k)
            rest = sorted(parts[1:][0:1] * 2 and [2.0, 1.0])
            rest.append(3.0)
            total = np.zeros(2, "float32")
            total[0] = sum(rest)
            return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant([0, 1]), logits=tf.add_n(parts)) + total

        return step, nothing, lambda: None

    expected, _, _ = run(build, lambda step: step)
    actual, _, step = run(build, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and step.stats().whole_steps >= 6


def test_gradients_of_a_list_that_grows():
    def build():
        a, b = tf.Variable(2.0), tf.Variable(3.0)
        watched = [a]

        def step(x):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(x) * a * b
            return tape.gradient(y, watched)

        return step, lambda: watched.append(b), lambda: None

    expected, _, _ = run(build, lambda step: step)
    actual, _, step = run(build, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected and [len(gradients) for gradients in actual] == [1] * 8 + [2] * 6
    assert step.stats().whole_steps > 0


def test_an_error_of_the_framework_s_that_is_caught():
    def build():
        layer = tf.keras.layers.Reshape((3,))

        def step(x):
            try:
                return layer(x)
            except Exception:  # noqa: BLE001 (as a user would)
                return x

        def change():
            layer.target_shape = (2, 1)

        return step, change, lambda: None

    expected, _, _ = run(build, lambda step: step)
    actual, _, _ = run(build, lambda step: terra.coexecute(step, wait_for_graph=True))
    assert actual == expected


# ------------------------------------------------------------------------------------------ lists of the framework's among the arguments

class Padded(keras.layers.Layer):
    """A layer whose lists are Keras' own (TrackedList): they are given to functions of TensorFlow's."""

    def __init__(self):
        super().__init__()
        self.paddings, self.parts, self.names = [[0, 1], [1, 0]], [tf.Variable([1.0, 2.0, 3.0]), tf.Variable([2.0, 1.0, 0.5])], {"axis": 0}

    def call(self, x):
        return tf.pad(x, self.paddings) * tf.add_n(self.parts) + tf.reshape(x, [1, 4])[:, :3]


class PaddedModule(tf.Module):
    """The same with those of TensorFlow (ListWrapper)."""

    def __init__(self):
        super().__init__()
        self.paddings, self.parts = [[0, 1], [1, 0]], [tf.Variable([1.0, 2.0, 3.0]), tf.Variable([2.0, 1.0, 0.5])]

    __call__ = Padded.call


def lengthened(padded):
    padded.paddings[0][1] = 2
    padded.paddings[1] = [0, 1]


@pytest.mark.parametrize("make", [Padded, PaddedModule])
@pytest.mark.parametrize("change", [lambda p: None, lengthened, lambda p: p.parts[0].assign([5.0, 6.0, 7.0]), lambda p: p.parts.append(p.parts[0])],
                         ids=["nothing", "contents", "value", "longer"])
@pytest.mark.parametrize("forward", [True, "framework"])
def test_lists_of_the_frameworks(make, change, forward):
    def build():
        padded = make()
        return padded, lambda: change(padded), lambda: len(padded.parts)

    expected = run(build, lambda step: step)
    actual = run(build, lambda step: terra.coexecute(step, wait_for_graph=True, fast_forward=forward))
    assert actual[:2] == expected[:2]
    assert actual[2].stats().fast_forwards >= 14, terra.explain(actual[2])
    assert "is given an object" not in terra.explain(actual[2], full=True)


def test_a_model_with_many_containers():
    """It is skipped, as long as none of them is another."""
    class Table(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.rows = [[k] for k in range(8000)]

        def call(self, x):
            return x * float(self.rows[-1][0])

    seen = []
    for wrap in (lambda f: f, lambda f: terra.coexecute(f, wait_for_graph=True)):
        table = Table()
        model = keras.Sequential([keras.layers.Input((2,)), table, keras.layers.Activation("tanh")])
        step, found = wrap(lambda x: model(x) * 2.0), []
        for k in range(24):
            if k == 16:
                table.rows[-1][0] = 3
            found.append(step(X * 1e-4).numpy().tolist())
        seen.append(found)
    assert seen[0] == seen[1]
    assert step.stats().whole_steps >= 10, terra.explain(step)
