"""Blocks in loops become functions of their own only where no program can tell: random programs, and the rules one by one. No TensorFlow in here."""

import ast
import os
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from terra.transform import is_outlined, outline
from tests.variants import examples

NAMES = ("a", "b", "c", "d")


def outlined(source, is_main=True):
    """(the changed source's tree, names of the arguments and of the results of its new functions)."""
    tree = ast.parse(textwrap.dedent(source))
    outline(tree, is_main)
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and is_outlined(node.name)]
    signatures = []
    for node in made:
        value = node.body[-1].value if isinstance(node.body[-1], ast.Return) else None
        results = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)] if value is not None else []
        signatures.append(([a.arg for a in node.args.args], results))
    return tree, signatures


class Swallow:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        return kind is ZeroDivisionError


class GradientTape:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


def run(tree):
    """What a program has logged, and the class of its error."""
    log = []

    def note(*values):
        log.append(tuple([v if type(v) in (int, str) else type(v).__name__ for v in values]))
        if len(log) > 300:
            raise OverflowError
        return sum(v for v in values if type(v) is int) % 7

    class tf:
        cast = staticmethod(note)

    names = {"tf": tf, "GradientTape": GradientTape, "Swallow": Swallow, "note": note, "apply": note, "kept": [], "__name__": "__main__"}
    try:
        exec(compile(tree, "<program>", "exec"), names)
        for function in names["kept"]:
            log.append(("kept", function()))
    except NameError:
        return log, "NameError"  # (that of a local name has a class of its own)
    except Exception as error:
        return log, type(error).__name__
    return log, None


# -- random programs -----------------------------------------------------------------------------------------------------------

name = st.sampled_from(NAMES)
value = st.one_of(st.integers(0, 4).map(str), name, name, st.tuples(name, name).map(lambda t: f"{t[0]} + {t[1]}"), name.map("note({})".format), name.map("reads_{}()".format),
                  st.tuples(name, name).map(lambda t: f"sum([{t[0]} for {t[0]} in ({t[1]}, 2)])"), name.map("sum({0} + k for k in (1, 2))".format))
simple = st.one_of(
    st.tuples(name, value).map(" = ".join), st.tuples(name, value).map(" = ".join), st.tuples(name, value).map(" += ".join), st.tuples(name, name, value).map("{0[0]}, {0[1]} = {0[2]}, 1".format),
    value.map("note({})".format), value.map("apply({})".format), name.map("del {}".format), name.map("sets_{}()".format),
    name.map("kept.append(lambda: {})".format), name.map("1 // {}".format), name.map("note({})".format), st.sampled_from(["pass", "pass", "break", "continue", "return"]))


def indented(lines):
    return [f"    {line}" for line in lines]


def body(children):
    return st.lists(children, min_size=1, max_size=4).map(lambda parts: [line for part in parts for line in part])


def compound(children):
    inner = body(children)
    return st.one_of(
        st.tuples(value, inner).map(lambda t: [f"if {t[0]}:", *indented(t[1])]),
        st.tuples(value, inner, inner).map(lambda t: [f"if {t[0]}:", *indented(t[1]), "else:", *indented(t[2])]),
        st.tuples(name, inner).map(lambda t: [f"for {t[0]} in range(3):", *indented(t[1])]),
        st.tuples(name, inner).map(lambda t: [f"for {t[0]} in range(3):", *indented(t[1])]),
        st.tuples(name, inner).map(lambda t: [f"while note(7, {t[0]}) % 3:", *indented(t[1])]),
        st.tuples(inner, inner).map(lambda t: ["with GradientTape() as tape:", *indented(t[0]), *t[1], "apply(tape is None)"]),
        st.tuples(name, value, inner).map(lambda t: [f"for {t[0]} in range(3):", f"    {t[0]} = tf.cast({t[1].split(' ')[0].split('(')[0]})", "    with GradientTape() as tape:", *indented(indented(t[2]))]),
        *4 * [st.tuples(name, inner, st.one_of(st.just([]), inner)).map(
            lambda t: [f"for {t[0]} in range(3):", "    with GradientTape() as tape:", *indented(indented(t[1])), *indented(t[2]), "    apply(tape is None)"])],
        st.tuples(inner).map(lambda t: ["with Swallow():", *indented(t[0])]),
        st.tuples(name, inner, inner).map(lambda t: ["try:", *indented(t[1]), f"except (ZeroDivisionError, NameError) as {t[0]}:", *indented(t[2])]),
        st.tuples(inner, inner).map(lambda t: ["try:", *indented(t[0]), "finally:", *indented(t[1])]),
        st.tuples(value, name, inner).map(lambda t: [f"match {t[0]}:", f"    case int({t[1]}) if {t[1]} > 1:", *indented(indented(t[2]))]),
    )


statement = st.recursive(simple.map(lambda s: [s]), compound, max_leaves=14)
loop = compound(statement)  # most often one with a block


@st.composite
def programs(draw):
    """The source of a program."""
    first = [f"{n} = {k + 1}" for k, n in enumerate(draw(st.one_of(st.just(NAMES), st.just(NAMES), st.lists(name, unique=True))))]
    lines = [line for part in draw(st.lists(loop, min_size=1, max_size=3)) for line in part]
    last = []
    for n in draw(st.lists(name, unique=True)):
        last += ["try:", f"    note('{n}', {n})", "except NameError:", "    note('none')"]
    reading = draw(st.sets(name, max_size=1)) if draw(st.booleans()) else set()
    helpers, setting = [], draw(st.sets(name, max_size=1)) if draw(st.booleans()) else set()
    where = draw(st.sampled_from(["module", "function", "method", "nested"]))
    for n in NAMES:
        helpers += [f"def reads_{n}():", f"    return {n if n in reading else 2}"]
        helpers += [f"def sets_{n}():", *([f"    {'global' if where == 'module' else 'nonlocal'} {n}"] if n in setting else []), f"    {n} = 5"]
    if where == "module":
        return "\n".join([*helpers, *first, *lines, *last])
    bound = [f"{n} = 1" for n in sorted(setting)]
    if where == "nested":
        inside = [*first, "def inner():", *indented([*bound, *helpers, *lines, *last]), "inner()", *last]
        return "\n".join(["def main():", *indented(inside), "main()"])
    parts = [*bound, *helpers, *first, *lines, *last]
    if where == "function":
        return "\n".join(["def main():", *indented(parts), "main()"])
    return "\n".join(["class Trainer:", "    def main(self):", *indented(indented(parts)), "Trainer().main()"])


EXAMPLES = int(os.environ.get("TERRA_RANDOM_PROGRAMS", examples(200)))
found = {"programs": 0, "functions": 0}


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize="TERRA_RANDOM_PROGRAMS" not in os.environ)
@given(programs())
def check_random_programs(source):
    try:
        plain = ast.parse(source)
        compile(plain, "<program>", "exec")
    except SyntaxError:  # a `break` outside of a loop, say
        return
    tree, made = outlined(source)
    found["programs"] += 1
    found["functions"] += len(made)
    assert run(tree) == run(plain), ast.unparse(tree)


def test_random_programs():
    check_random_programs()
    assert found["programs"] > 0.6 * EXAMPLES and found["functions"] > 0.1 * EXAMPLES, found


# -- one by one ----------------------------------------------------------------------------------------------------------------

LOOP = textwrap.dedent("""\
    for x, y in data:
        with tf.GradientTape() as tape:
            p = model(x)
            loss = error(y, p)
        grads = tape.gradient(loss, model.weights)
        optimizer.apply_gradients(zip(grads, model.weights))
        {}
""")


def within(head, body, spaces=1):
    return head + "\n" + textwrap.indent(body, " " * spaces)


def test_what_a_block_needs_and_gives():
    assert outlined("class Model(Base):\n def __init__(self): super().__init__()\n" + LOOP.format("print(loss)"))[1] == [(["x", "y"], ["loss"])]
    assert outlined(LOOP.format("print(loss)"))[1] == [(["x", "y"], ["loss"])]
    assert outlined(LOOP.format("print(float(loss), x)"))[1] == [(["x", "y"], ["loss"])]
    assert outlined(LOOP.format("history.append(loss)"))[1] == [(["x", "y"], ["loss"])]
    assert outlined(LOOP.format("pass"))[1] == [(["x", "y"], [])]
    assert outlined(LOOP.format("metric.update_state(y, p)"))[1] == [(["x", "y"], [])]
    assert outlined(LOOP.format("metric(y, p)"))[1] == [(["x", "y"], [])]
    for call in "metrics.log(loss)", "callback.on_batch_end(loss)", "bar.set_postfix(loss=loss)", "show_image(p)", "writers[0](loss)":
        assert outlined(LOOP.format(call))[1] != [(["x", "y"], [])]
    assert outlined(LOOP.format("total += float(loss)"))[1] == [(["x", "y"], ["loss"])]
    assert outlined(LOOP.format("print(vars(options), model.eval())"))[1] == [(["x", "y"], [])]
    assert outlined(LOOP.replace("GradientTape()", "GradientTape(persistent=True)").replace("y, p", "y[0], p"))[1] == [(["x", "y"], [])]
    assert outlined(LOOP.format("del tape"))[1] == [(["x", "y"], [])]
    inside = LOOP.format("pass").replace("    grads", "        grads").replace("    optimizer", "        optimizer")
    assert outlined(inside.replace("tf.GradientTape()", "profiler.Trace(name='train'), tf.GradientTape()"))[1] == [(["x", "y"], [])]


def test_in_a_function_its_own_names_are_arguments_too():
    head = "def train(model, data, optimizer):"
    assert outlined(within(head, LOOP.format("print(loss)")))[1] == [(["model", "optimizer", "x", "y"], ["loss"])]
    assert outlined(within("class T:\n def train(self, data):\n  model, optimizer = self.parts", LOOP.format("pass"), 2))[1] == [
        (["model", "optimizer", "x", "y"], [])]
    assert outlined(within("def outer(model):\n optimizer = adam()\n def train(data):", LOOP.format("pass"), 2))[1] == [
        (["model", "optimizer", "x", "y"], [])]


def test_lists_that_grow_are_no_arguments():
    head = "def train(model, data, optimizer, seen, metric):"
    for use in "print(len(seen))", "seen.append(*y)", "n = len(seen)", "seen.insert(0, p)":
        after = f"seen.append(loss)\n    {use}\n    metric.update_state(y, p)"
        assert outlined(within(head, LOOP.format(after)))[1][0][0] == ["model", "optimizer", "x", "y"]
    assert outlined(LOOP.format("seen.append(loss)\n    metric.update_state(y, p)"))[1] == [(["x", "y"], [])]  # a global name, which is none


def filled(source):
    tree = ast.parse(source)
    outline(tree, True)
    return {arg.arg for node in tree.body if isinstance(node, ast.FunctionDef) and is_outlined(node.name) for arg in node.args.args if arg.annotation is not None}


def test_lists_that_are_only_appended_to():
    head = "def train(model, data, optimizer, seen, metric):"
    after = "seen.append(loss)\n    seen.extend(p)\n    metric.update_state(y, p)"
    assert outlined(within(head, LOOP.format(after)))[1] == [(["metric", "model", "optimizer", "seen", "x", "y"], [])]
    assert filled(within(head, LOOP.format(after))) == {"seen"}
    assert filled(within(head, LOOP.replace("p = model(x)", "p = model(x); seen.append(p)").format("print(seen)"))) == {"seen"}
    assert filled(within(head, LOOP.replace("p = model(x)", "p = model(x); seen.append(seen)").format("pass"))) == set()


def test_lists_that_begin_empty_with_each_step():
    def episode(first, last="pass"):
        return outlined(within("def train(data, model, optimizer, seen):", LOOP.replace("p = model(x)", "p = model(x); losses.append(p); n = losses[-1]").replace("    with", f"    {first}\n    with").format(last)))[1]
    for first in "losses = []", "x, losses = x + 1, []", "n = losses = list()", "losses = collections.deque(maxlen=9)", "[y, (losses, n)] = y, ([], 0)", "losses = []; n = 0", "losses = collections.defaultdict(list)":
        assert [arguments for arguments, _ in episode(first)] == [["losses", "model", "optimizer", "x", "y"]]
    for first in "losses = seen", "losses = list(seen)", "pass; losses = []; losses = seen", "losses, n = seen", "losses = [0]", "n, losses = [], seen":
        assert episode(first) == []
    assert episode("losses = []", "seen.append(loss)") == [(["losses", "model", "optimizer", "x", "y"], ["loss"])]


def test_operations_before_a_block():
    def first(*lines):
        (arguments, _), = outlined(LOOP.format("pass").replace("    with", "".join(f"    {line}\n" for line in lines) + "    with").replace("model(x)", "model(x, z)"))[1]
        return arguments
    assert first("z = tf.random.normal((2, 3))") == ["x", "y"]
    assert first("z = tf.cast(x, tf.float32) / 255.0", "x = tf.reshape(z, (-1, 2))") == ["x", "y"]
    assert first("z = next(numbers)") == ["x", "y", "z"]
    assert first("z = tf.data.Dataset.range(3)") == ["x", "y", "z"]
    assert first("z = tf.constant(x)") == first("z = tf.cast(x[0], tf.int32)") == ["x", "y", "z"]
    assert first("z = tf.random.normal(next(shapes))") == ["x", "y", "z"]


def test_names_that_are_used_again():
    two = LOOP.format("print(loss)") + LOOP.format("print(loss)").replace("error", "other_error")
    for program in two, within("def train(model, data, optimizer):", two):
        assert [results for _, results in outlined(program)[1]] == [["loss"], ["loss"]]
    twice = LOOP.format("pass") + textwrap.indent(textwrap.dedent(LOOP.format("print(loss)")).partition("\n")[2], "")
    assert [results for _, results in outlined(twice)[1]] == [["loss"]]  # one function, of both
    assert outlined(LOOP.format("pass").replace("p = model(x)", "x = f(x); p = model(x)"))[1] == [(["x", "y"], [])]
    kept = within("def train(model, data, optimizer):", LOOP.format("pass")) + " return loss"
    assert outlined(kept)[1] == [(["model", "optimizer", "x", "y"], ["loss"])]


CARRIED = """
    state = start()
    for x in data:
        with GradientTape() as tape:
            y, state = cell(x, state)
        v.assign_sub(tape.gradient(y, v))
"""


def test_what_the_next_iteration_needs():
    assert outlined(CARRIED)[1] == [(["state", "x"], ["state"])]
    assert outlined(CARRIED.replace("    state = start()", "    if first: state = start()"))[1] == []  # perhaps not bound


SOMETIMES = """
    best = 9.0
    for x in data:
        with GradientTape() as tape:
            loss = f(x)
        if loss < best:
            best = loss
        v.assign_sub(tape.gradient(loss, v))
"""


def test_what_is_bound_sometimes():
    assert outlined(SOMETIMES)[1] == [(["best", "x"], ["best"])]
    assert outlined(SOMETIMES + "    print(best)")[1] == [(["best", "x"], ["best"])]
    assert outlined(SOMETIMES.replace("    best = 9.0\n", "").replace("loss < best", "loss < 9.0"))[1] == [(["x"], [])]
    assert outlined(SOMETIMES.replace("    best = 9.0\n", "").replace("loss < best", "loss < 9.0") + "    print(best)")[1] == []


@pytest.mark.parametrize("program", [
    LOOP.format("print(globals())"),
    "import sys\nmain = sys.modules['__main__']\n" + LOOP.format("pass"),
    "import __main__\n" + LOOP.format("pass"),
    LOOP.format("print(vars())"),
    LOOP.replace("GradientTape()", "GradientTape(run_ahead=0)"),
    LOOP.format("print(tape)") + "print(tape)",
    within("def train(model, data, optimizer, rows):", LOOP.replace("model(x)", "model(rows[x])")),
    "def f(): return loss\n" + LOOP.format("f()"),  # it is a global name
    "def f():\n global x\n x = 1\n" + LOOP.format("f()"),
    within("def train(data, model, optimizer):\n def f(): return loss", LOOP.format("f()")),
    LOOP.replace("p = model(x)", "p = model(x); continue"),
    LOOP.replace("p = model(x)", "p = model(x); later.append(lambda: x)"),
    LOOP.replace("p = model(x)", "p = model(x); later = (x + k for k in p)"),
    LOOP.replace("p = model(x)", "p = model(x); del optimizer"),
    LOOP.replace("p = model(x)", "p: int = model(x)"),
    LOOP.replace("p = model(x)", "p = (q := model(x))"),
    LOOP.replace("p = model(x)", "import keras"),
    within("def train(data, model, optimizer):", LOOP.replace("p = model(x)", "p = yield x")),
    within("class T:\n def train(self, data, optimizer):", LOOP.replace("model", "self.__model"), 2),  # its name is another one outside of the class
    within("class T(U):\n def train(self, data, optimizer):", LOOP.replace("model(", "super().predict("), 2),
    within("try:", LOOP.format("pass")) + "finally:\n print(loss)",
    within("while True:\n try:", LOOP.format("pass"), 2) + " except ValueError:\n  print(loss)",
    within("@tf.function\ndef train(model, data, optimizer):", LOOP.format("pass")),
    within("def train(data):", LOOP.format("pass")) + " model, optimizer = 1, 2",
])
def test_what_stays_as_it_is(program):
    program = program.replace("{}", "pass")
    tree, made = outlined(program)
    assert made == [] and ast.dump(tree) == ast.dump(ast.parse(program))


def test_exceptions_that_nobody_looks_at_afterwards():
    assert outlined(within("try:", LOOP.format("print(loss)")) + "except KeyboardInterrupt:\n pass")[1] == [(["x", "y"], ["loss"])]


BODY = textwrap.dedent(LOOP.format("pass").partition("\n")[2])


def test_what_stands_behind_a_handler_that_leaves():
    def guarded(handler, after="print(loss)"):
        return outlined("for k in range(9):\n x, y = next(data)\n try:\n" + textwrap.indent(BODY, "  ") + f" except ValueError:\n  {handler}\n {after}")[1]
    for handler in "continue", "raise", "print(k); continue":
        assert guarded(handler) == [(["x", "y"], ["loss"])], handler
    for handler in "pass", "print(loss); continue", "if k: continue":
        assert guarded(handler) == [], handler
    assert guarded("break", "print(loss)\nprint(loss)") == []  # it may be read behind the loop, too


def test_what_is_bound_where_a_branch_leaves():
    def taken(leave):
        return outlined("while True:\n try:\n  x, y = next(batches)\n except StopIteration:\n  " + leave + "\n" + textwrap.indent(BODY, " "))[1]
    for leave in "break", "print(0); raise", "continue":
        assert taken(leave) == [(["x", "y"], [])], leave
    assert taken("pass") == []


def test_modules_that_others_import():
    assert outlined(LOOP.format("pass"), is_main=False)[1] == []
    assert len(outlined(within("def train(model, data, optimizer):", LOOP.format("pass")), is_main=False)[1]) == 1


def test_lines_are_the_program_s():
    tree, _ = outlined(LOOP.format("print(loss)"))
    made, loop = tree.body
    assert made.lineno == 2 and made.body[0].lineno == 2 and made.body[-2].lineno == 6 and loop.body[0].lineno == 2 and loop.body[1].lineno == 7
