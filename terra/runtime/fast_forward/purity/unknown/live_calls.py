"""The observer's part for calls that are made each time, also where the run is skipped: the next element of an iterator, draws of random numbers (see `sources.residual_calls`);
and for the values of tensors that a step is given."""

import weakref
from typing import Any

import numpy as np

from terra.runtime.fast_forward.sources import residual_calls
from terra.runtime.fast_forward.sources.opaque_calls import Held, numpy_of
from terra.runtime.tensors.object_kinds import TENSORS
from terra.tf import private_names as tfi
from terra.tf.random_state import random_state


class LiveCalls:
    """The calls of one run that are made each time."""

    def __init__(self, run: Any):
        self._of = weakref.ref(run)

    def make(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Makes a call of a method that is to be called each time; returns what stands for what it gives."""
        run = self._of()
        recording, step, doing = run.recording, run.runner.step, f"calls {type(owner).__name__}.{name}"
        takes = residual_calls.takes_element(owner, name)
        given, args, kwargs = args, tuple([self._sizes(x) for x in args]), {key: self._sizes(x) for key, x in kwargs.items()}
        draws = not takes and residual_calls.draws(owner, name, args, kwargs)
        key = name, len(args), *map(type, args), *kwargs
        as_opaque = draws and (recording is None or residual_calls.chooses_objects(name, args) or key in run.runner.program.integer_draws)
        if not draws and not takes and residual_calls.may_choose(owner, name):
            as_opaque = True
        elif not draws and (recording is None or not takes):
            run.impure(doing)
        elif draws and recording is not None and not recording.knows_draws():
            run.impure(doing)  # somebody else has drawn
        elif draws and not as_opaque and run.opaque.draws:
            run.impure("draws random numbers, after functions that do so inside of calls")  # these would come later where the step is skipped
        if as_opaque or run.reason is not None:
            return run.opaque.make(getattr(owner, name), args if draws else given, kwargs, doing)
        for x in (*args, *kwargs.values()):
            run.framework.note_arguments(x)
        before = random_state()
        step.pause()  # it is no operation of the step's
        try:
            value = getattr(owner, name)(*args, **kwargs)
        finally:
            step.resume()
        if draws:
            step.draws.append((before, random_state()))
        if not residual_calls.flat(value):
            if draws and isinstance(value, (int, np.integer)):  # the next time it is taken for one of few, or tells where it came from
                run.runner.program.integer_draws.add(key)
            run.impure(f"{doing}, which gives an object of type {type(value).__name__}")
            return value
        return self.gave(value, owner, name, args, kwargs)

    def gave(self, value: Any, owner: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Returns what stands for `value`, which such a call has given."""
        run = self._of()
        call = residual_calls.ResidualCall(owner, name, args, tuple(kwargs.items()), residual_calls.kind_of(value))
        made = residual_calls.rebuilt(value, iter(run.dynamic.drawn(call, residual_calls.flat(value))))
        run.framework.bear(made)
        return made

    def may_read(self, it: Any) -> bool:
        """Returns whether it is a tensor that the step is given, or that was there before: its value is read anew where the step is skipped."""
        run = self._of()
        return type(it) in TENSORS and run.recording is not None and run.reason is None and not run.is_own_tensor(it) and not run.is_handle(it)

    def value_of(self, it: Any) -> Any:
        """Returns the array, or number, that such a tensor holds."""
        run = self._of()
        run.used.add(id(it))
        return run.opaque.note(numpy_of, (Held(numpy_of), [it], {}), it.numpy(), ("numpy", None), None, False, True, "reads the value of a tensor that is an argument")

    def _sizes(self, x: Any) -> Any:
        """Returns the tuple of what is in a list or shape, as a draw reads them alike and nobody changes it; anything else as it is."""
        return tuple(self._of().contents.iterated(x)) if type(x) is list or (type(x) is tfi.tensor_shape.TensorShape and x.rank is not None) else x
