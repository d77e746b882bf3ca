"""What Terra knows of libraries by name stands in `terra/frameworks/` and `terra/tf/`, and what is listed there exists in the versions that are installed."""

import ast
import importlib
import importlib.util
import pathlib
import re

import pytest
import tensorflow as tf

from terra.frameworks import keras, libraries, effect_free, framework_objects, tensorflow

ROOT = pathlib.Path(__file__).parent.parent
ROOTS = "keras|tf_keras|tensorflow|numpy|ml_dtypes|sonnet|pyinstrument|wrapt|transformers|gpflow|einops|jax|torch"
PATH = re.compile(rf"({ROOTS})[./][a-z_./]*|.*\.src\.[a-z_.]*")
# Modules with paths of libraries' modules or files in their text still, and how many: a number may fall, and an entry go, but neither may rise or come.
WITH_PATHS = {"terra.runtime.tensors.size_readers": 36}


def paths_in(text):
    """The paths of modules or files among the constants of a source text, without docstrings."""
    tree = ast.parse(text)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is str and id(node) not in prose]
    return [value for value in found if PATH.fullmatch(value)]


def test_paths_stand_in_tables():
    found = {}
    for path in sorted((ROOT / "terra").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if not name.startswith(("terra.frameworks.", "terra.tf.")):
            found[name] = len(paths_in(path.read_text()))
    too_many = {name: n for name, n in found.items() if n > WITH_PATHS.get(name, 0)}
    assert too_many == {}
    assert {name: n for name, n in WITH_PATHS.items() if found.get(name, 0) < n} == {}, "fewer than in the list"


def _listed_modules():
    found = {module for module, *_ in keras.ENTRIES}.union(keras.TRAINERS, keras.OF_FUNCTIONS, effect_free._SETTINGS)
    return sorted(found.union(value for value in vars(keras).values() if type(value) is str and PATH.fullmatch(value)))


@pytest.mark.all_variants
@pytest.mark.parametrize("module", _listed_modules())
def test_modules_exist(module):
    importlib.import_module(module)


CLASSES = [
    *keras.ENTRIES, *keras.OUTSIDE_ENTRIES, *((module, name, keras.LOOP_FUNCTIONS) for module, name in keras.TRAINERS.items()),
    (keras.CALLBACKS, "CallbackList", keras.LISTENERS), ("keras.src.callbacks.callback", "Callback", sum(keras.LISTENERS.values(), ())),
    (keras.ARRAY_ADAPTERS, keras.ARRAY_ADAPTER, ("get_tf_dataset",)), (keras.TENSORFLOW_TRAINER, keras.EPOCH_ITERATOR, ()),
    (keras.LOSS_SCALING, "LossScaleOptimizer", ("check_finite", "_stateful_handle_finite_grads")),
    (keras.DTYPE_POLICIES, "DTypePolicy", ()), (keras.DTYPE_POLICIES, "FloatDTypePolicy", ()),
    (keras.TRAINER, "Trainer", ("get_metrics_result",)), ("keras.src.layers.core.embedding", "Embedding", ("call",)),
    ("keras.src.ops.node", "Node", ()), ("keras.src.backend.common.keras_tensor", "KerasTensor", ())]


@pytest.mark.all_variants
@pytest.mark.parametrize("module, name, methods", CLASSES)
def test_classes_exist(module, name, methods):
    cls = getattr(importlib.import_module(module), name, None)
    assert cls is not None or (module, name) in keras.OPTIONAL
    missing = [method for method in methods if cls is not None and not hasattr(cls, method) and (module, method) not in keras.OPTIONAL]
    assert missing == []


def test_one_of_what_is_optional():
    variables = importlib.import_module("keras.src.backend.common.variables")
    assert hasattr(variables, "Variable") or hasattr(variables, "KerasVariable")


def test_kinds_of_objects_exist():
    places = [importlib.import_module(name) for name in (
        "keras.layers", "tf_keras.layers", "keras.src.utils.tracking", "keras.src.utils.config", "keras.src.ops.function", "keras.src.ops.node")]
    for name in (*keras.OPAQUE, *keras.RESETTING, *framework_objects.NEVER):
        assert any(hasattr(place, name) for place in places), name
    for name in keras.PARTS:
        assert any(importlib.util.find_spec(f"{root}.src.{name}") for root in ("keras", "tf_keras")), name


def test_functions_exist():
    for package, names in tensorflow.NAMESPACES.items():
        for name in filter(None, names):
            if name == "src.legacy.backend":
                importlib.import_module(f"{package}.{name}")
            space = importlib.import_module(package)
            for part in name.split("."):
                space = getattr(space, part)
    backends = [importlib.import_module(name) for name in ("tf_keras.backend", "keras.src.legacy.backend")]
    for name in tensorflow.OF_BACKENDS:
        assert any(hasattr(backend, name) for backend in backends), name
    for module, names in effect_free._SETTINGS.items():
        assert all(hasattr(importlib.import_module(module), name) for name in names)
    assert all(hasattr(tf.Variable, name) for name in tensorflow.ASSIGNING) and all(hasattr(tf.TensorArray, name) for name in effect_free.OF_ARRAYS)


def test_attributes_exist():
    """Attributes are in the source text of one of the packages that set them."""
    names = {*keras.OF_SETTERS, *keras.OF_VARIABLES, *keras.OF_NODES, *keras.OF_RESULTS, *keras.OF_LOOPS, *keras.DROPOUT_MASKS, *keras.STEP_CALLERS}
    for package in ("keras.src", "tf_keras.src", "tensorflow.python.trackable"):
        for folder in importlib.util.find_spec(package).submodule_search_locations:
            for path in pathlib.Path(folder).rglob("*.py"):
                names -= set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    assert names == set()


@pytest.mark.parametrize("package, module", [(libraries.SONNET, libraries.SONNET_UTILS), (libraries.PYINSTRUMENT, libraries.PYINSTRUMENT_SAMPLER)])
def test_modules_of_other_libraries_exist(package, module):
    pytest.importorskip(package)
    importlib.import_module(module)
