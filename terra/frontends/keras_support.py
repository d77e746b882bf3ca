"""Stock Keras training, co-executed: `terra.compile(model, ...)`.

Keras builds its loops round three methods of a model, `train_step`, `test_step` and `predict_step`, each called once per batch. With
`run_eagerly=True` it calls them as plain Python, which keeps all of Python and is slow; otherwise it puts them in a `tf.function`, which is fast and
keeps little. `terra.compile` turns `run_eagerly` on and puts a co-executed function in the place of each of the three, as attributes of the one
model. `fit`, `evaluate`, `predict`, their `..._on_batch` forms, callbacks and data adapters stay Keras' own, so they need no support of their own.

Nothing here imports Keras: Keras 3 (on TensorFlow) and tf_keras differ in none of the names that are used.
"""

import dataclasses
import difflib
import functools
import inspect
import sys

from terra import errors
from terra.frameworks import keras, framework_objects
from terra.frontends import array_batches, outside_calls, script
from terra.frontends.decorator import coexecute
from terra.options import COUNTERPARTS, Options, unknown
from terra.runtime.step_function.coexecution import Coexecuted
from terra.tf import private_names as tfi

STEPS = {name.removesuffix("_step"): name for name in framework_objects.STEPS}
_MARK = "_terra_keras_steps"
_TERRA_OPTIONS = {f.name for f in dataclasses.fields(Options)}


class KerasSteps:
    """The co-executed steps `train`, `test` and `predict` of a model, and the way back: `terra.compile` returns it."""

    def __init__(self, model, options):
        self.model = model
        self.active = True
        self._compiled_as = (bool(model.run_eagerly), bool(model.jit_compile))  # what it would be without Terra
        self._before = {}  # what was among the model's own attributes under each name under which something was put there
        self._put = {}  # what was put there
        self._of_class = _steps_of_class(model)
        for short, name in STEPS.items():
            step = getattr(model, name)
            if not _is_decorated(model, name):
                step = coexecute(step, **options)
                self._replace(name, step)
            setattr(self, short, step)
        for make, kept in keras.LOOP_FUNCTIONS.items():
            if getattr(inspect.getattr_static(model, make, None), "__module__", None) == keras.TENSORFLOW_TRAINER:
                self._replace(make, _making(model, getattr(model, make), kept))
        vars(model)[_MARK] = self

    def _replace(self, name, value):
        attributes = vars(self.model)  # not setattr: Keras would look for layers and variables in it
        self._before[name] = attributes.get(name)
        self._put[name] = attributes[name] = value

    def stats(self):
        """The statistics of the three steps: {"train": Stats, "test": Stats, "predict": Stats}."""
        return {short: getattr(self, short).stats() for short in STEPS}

    def undo(self):
        """Make the model a stock one again, compiled as before, with its weights and optimizer as they are now."""
        if self.active:
            self._remove()
            _compile_as(self.model, *self._compiled_as)

    def _remove(self):
        self.active = False
        attributes = vars(self.model)
        for name, before in self._before.items():
            if attributes.get(name) is not self._put[name]:
                continue  # the program has put something of its own there
            if before is None:
                del attributes[name]
            else:
                attributes[name] = before
        del attributes[_MARK]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.undo()


def compile(model, *args, **keywords):
    """Co-execute the stock `fit`, `evaluate` and `predict` of a Keras model, where Python semantics would need `run_eagerly=True`.

    With more arguments than the model, calls `model.compile` with them first; the fields of `terra.Options` among the keywords are options of the
    co-executed steps. Without, the model is taken as it was compiled. A method that the model's class has decorated with `terra.coexecute` is left
    as it is. May be called again, with other options or after a `model.compile`.

    Returns: a `KerasSteps`, with the statistics; its `undo()` gives the stock model back, and it may be used as a context manager.
    Raises: OptionError for what is no Keras model on TensorFlow, for `run_eagerly=False`, and for a model under a distribution strategy.
    """
    _check(model)
    options = {k: keywords.pop(k) for k in list(keywords) if k in _TERRA_OPTIONS and (k, keywords[k]) != ("jit_compile", "auto")}  # which is Keras' own word
    Options.make(options, "terra.compile")  # a wrong option is told before anything has changed
    _check_names(model, keywords)
    if keywords.get("run_eagerly") is False:
        raise errors.OptionError("terra.compile runs the model's steps as Python, so run_eagerly=False cannot be had; leave it out, "
                                 "or call model.compile for a tf.function.")
    previous = vars(model).get(_MARK)
    if previous is not None:
        previous.undo()
    if args or keywords:
        model.compile(*args, **keywords)  # as the user says: this is what is saved with the model, and what `undo` goes back to
    steps = KerasSteps(model, options)
    _compile_as(model, True, False)
    _prepare_arrays()
    return steps


def _prepare_arrays():
    """Let `fit` and the others of models that are compiled here take a few arrays without a pipeline."""
    if {keras.TENSORFLOW_TRAINER, keras.ARRAY_ADAPTERS} <= sys.modules.keys():
        array_batches.concern(_is_compiled)
        array_batches.prepare_adapter(sys.modules[keras.ARRAY_ADAPTERS])
        array_batches.prepare_iterator(sys.modules[keras.TENSORFLOW_TRAINER])


def _is_compiled(model):
    return _MARK in vars(model)


def _check_names(model, keywords):
    """Raises: OptionError for a keyword that `model.compile` does not take, and that is nearly an option of Terra's, or that other libraries have."""
    try:
        known = set().union(*(inspect.signature(vars(cls)["compile"]).parameters for cls in type(model).__mro__ if "compile" in vars(cls)))  # one passes on what it does not know
    except (TypeError, ValueError):  # a method without a signature
        return
    for name in keywords:
        if name not in known and (name in COUNTERPARTS or difflib.get_close_matches(name, _TERRA_OPTIONS, n=1, cutoff=0.75)):
            raise errors.OptionError(unknown(name, "terra.compile", [*_TERRA_OPTIONS, *known - {"kwargs"}]))


def steps_of(given):
    """The steps of a model, or of what `compile` has returned for it: those of `train`, `test` and `predict`; None for anything else."""
    if not isinstance(given, KerasSteps):
        attributes = getattr(given, "__dict__", None)
        given = attributes.get(_MARK) if type(attributes) is dict and not inspect.isclass(given) else None
    return [getattr(given, short) for short in STEPS] if isinstance(given, KerasSteps) else None


def _making(model, make, kept):
    """`make_train_function` (or `make_test_function`) of a model whose batches do not wait for each other."""

    def make_function(force=False):
        _spare_logs(sys._getframe(1).f_locals.get("callbacks"))  # `fit` and `evaluate` call this when they have made theirs
        if getattr(model, kept) is None or force:
            make(force)
            if model.run_eagerly:  # and was not compiled otherwise since
                _let_batches_pass(model, kept)
        return getattr(model, kept)

    return make_function


def _let_batches_pass(model, kept):
    """Take the `tf.experimental.Optional` that makes Python wait from the outputs of Keras' function for one batch, which it has just made.

    Keras puts what the step returned into one, and takes it out again, only if it is given a tf.data iterator.
    """
    run = getattr(model, kept)

    def function(iterator):
        if model.steps_per_execution != 1 or not isinstance(iterator, tfi.tf.data.Iterator):
            return run(iterator)
        outputs = run(iter([iterator.get_next()]))
        if type(outputs) is dict and outputs and all(isinstance(x, tfi.tf.Tensor) for x in outputs.values()):
            return outputs
        return tfi.tf.experimental.Optional.from_value(outputs).get_value()  # which makes tensors of numbers

    setattr(model, kept, function)


def _spare_logs(callbacks):
    """Let the callbacks of a `fit` do nothing at the end of a batch if none of them listens; Keras would read the batch's logs, and so wait for it."""
    if type(callbacks).__module__ != keras.CALLBACKS:
        return
    for hook, listeners in keras.LISTENERS.items():
        inherited = getattr(callbacks, hook, None)  # which an older Keras 3 does not have
        if hook not in vars(callbacks) and inspect.ismethod(inherited):
            setattr(callbacks, hook, _if_heard(callbacks, listeners, inherited))


def _if_heard(callbacks, listeners, inherited):
    def hook(batch, logs=None):
        heard = not all(getattr(getattr(callback, name), "_is_default", False) for callback in callbacks.callbacks for name in listeners)
        if heard or not isinstance(logs, dict):  # which Keras complains of
            inherited(batch, logs)

    return hook


class _OfScript(KerasSteps):
    """The steps of a model that the program itself compiled with `run_eagerly=True`."""


def preparations(options):
    """Returns {name of a module of Keras': the function that changes it}, so that models which are compiled with `run_eagerly=True` are co-executed, with these options."""
    array_batches.concern(_any)
    others = {keras.ARRAY_ADAPTERS: array_batches.prepare_adapter, **dict.fromkeys(keras.PACKAGES, outside_calls.install)}
    return others | {module: functools.partial(_prepare, name, options) for module, name in keras.TRAINERS.items()}


def _any(model):
    return True


def _prepare(name, options, module):
    trainer = getattr(module, name)
    for kept in framework_objects.STEP_FUNCTIONS:
        make = f"make_{kept}"
        setattr(trainer, make, _beginning(getattr(trainer, make), kept, options))
    if module.__name__ == keras.TENSORFLOW_TRAINER:
        array_batches.prepare_iterator(module)


def _beginning(make, kept, options):
    """Keras' method that makes the function of a batch. `fit` and the others call it first: by then it is known what the model was compiled with."""

    @functools.wraps(make)
    def make_function(model, force=False):
        if getattr(model, kept) is not None and not force:
            return make(model, force)
        steps = vars(model).get(_MARK)
        if type(steps) is _OfScript and (not model.run_eagerly or steps._of_class != _steps_of_class(model)):
            steps._remove()  # it was compiled anew otherwise, or its class has other steps now
            steps = None
        is_new = steps is None and model.run_eagerly and _refusal(model) is None
        if is_new:
            _OfScript(model, options)
            _spare_logs(sys._getframe(1).f_locals.get("callbacks"))
        made = make(model, force)
        if is_new and make.__name__ in vars(model):
            _let_batches_pass(model, kept)
        return made

    return make_function


def _steps_of_class(model):
    """Identifies the steps of the model's class: returns where their code is, which is the same for their instrumented forms."""
    steps = [inspect.getattr_static(type(model), name, None) for name in framework_objects.STEPS]
    codes = [getattr(step, "__code__", None) for step in steps]
    return [step if code is None else (code.co_filename, code.co_firstlineno, code.co_name) for step, code in zip(steps, codes)]


def _check(model):
    reason = _refusal(model)
    if reason is not None:
        raise errors.OptionError(reason)


def _refusal(model):
    """Why this cannot be a model with co-executed steps; None if it can."""
    missing = [name for name in ("compile", "fit", *STEPS.values()) if not callable(getattr(model, name, None))]
    if missing or inspect.isclass(model):
        return f"terra.compile takes a Keras model, not {model!r}; decorate a function with terra.coexecute instead."
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None:
        return "terra.compile needs Keras on TensorFlow; set KERAS_BACKEND=tensorflow before importing keras."
    if strategy.num_replicas_in_sync > 1:
        return "terra.compile does not support distribution strategies; build the model outside of the strategy's scope."
    return None


def _is_decorated(model, name):
    """Whether the user, or `python -m terra run`, has put a co-executed step under `name` into the model or its class."""
    found = inspect.getattr_static(model, name, None)
    return isinstance(found, Coexecuted) or script.steps_of(found) is not None


def _compile_as(model, run_eagerly, jit_compile):
    model.run_eagerly = run_eagerly
    model.jit_compile = jit_compile
    for name in framework_objects.STEP_FUNCTIONS:  # they were made for the former values
        setattr(model, name, None)
