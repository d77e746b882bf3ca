"""The steps of a script that is run by `python -m terra run`, which is not edited: `launch` starts it, and decorates its functions with what stands here.

`tf.GradientTape` is replaced by `terra.GradientTape`, so that its blocks are steps (supplement C.2). What is to be done with libraries' modules, such as Keras', is the caller's to say.
"""

import functools
import os
import sys
import time
import types
from threading import get_ident

from terra import ours
from terra.frontends import gradient_tape, launch, outside_calls
from terra.location import current_step
from terra.options import Options
from terra.runtime.execution import interception
from terra.runtime.execution.graph_runner import GRAPH_RUNNER
from terra.runtime.fast_forward.sources.effects import GROWING
from terra.runtime.fast_forward.sources.filled import Filled
from terra.runtime.interpreter import tracebacks
from terra.runtime.step_function.coexecution import Coexecuted
from terra.runtime.step_function.signatures import standing_in
from terra.tf import private_names as tfi
from terra.transform import STEPS, filled_in, instrument, is_outlined

_LOOKS = 2  # calls of a helper that are looked at before any is a step
_FEWEST, _MOST = 12, 2000  # tensors that a helper makes in a call, for that to be a step
_LONGEST = 0.1  # seconds that it takes: what takes longer is the program's loop

_calls = [0]  # of functions that are steps, and have a tape
_helped = [0]  # of helpers that are
_MOST_HELPED = 4  # of these that a step may call: what calls more is a loop that trains or evaluates
_seen = {}  # code of a function -> what its first call told: whether it may be a step


# -- the decorators ------------------------------------------------------------------------------------------------------------

def instrumented(function):
    """The instrumented form of a function."""
    return instrument(function)


def step(blocks):
    """A decorator for a function with so many tape blocks: from its second call on, each call is a co-executed step."""
    def decorate(function):
        form = instrument(function)
        steps = Coexecuted(function, form, Options.make(gradient_tape.defaults))
        seen = _seen.setdefault(function.__code__, [])

        @functools.wraps(function)
        @ours.calling
        def call(*args, **kwargs):
            if not tfi.tf.executing_eagerly():
                return steps.for_graph()(*args, **kwargs)  # part of somebody's graph
            try:
                if seen and seen[0]:
                    _calls[0] += 1
                    return steps(*args, **kwargs)
                before, helped = gradient_tape.begun() + _calls[0], _helped[0]
                result = form(*args, **kwargs)
            except BaseException as error:
                tracebacks.clean(error)
                raise
            if not seen:
                seen.append(gradient_tape.begun() + _calls[0] - before <= blocks and _helped[0] - helped <= _MOST_HELPED)
            return result

        if is_outlined(function.__name__):
            return call
        made = standing_in(function, call)
        STEPS[made] = steps
        return made
    return decorate


def helper(function):
    """A decorator for a function without a tape: each of its calls outside of any step is a co-executed one, from the third such call on, if the two before have
    issued operations enough, and contained nothing that is a step of its own."""
    return _helper(function, None)


def helping_method(function):
    """A decorator for a method without a tape: as `helper`, and each instance has steps of its own."""
    return _helper(function, outside_calls.Lasting())


class _Helper:
    """The forms of a helper: each is made when it is first needed, as most functions of a program never are one."""

    def __init__(self, function):
        self.__wrapped__ = function

    @functools.cached_property
    def form(self):
        return instrument(self.__wrapped__)

    @functools.cached_property
    def steps(self):
        return Coexecuted(self.__wrapped__, self.form, Options.make(gradient_tape.defaults))

    def within(self, step):
        """Returns the function that is called as a part of another `step`."""
        return self.steps.within(step)


def _helper(function, lasting):
    forms, seen, left_out = _Helper(function), [], []

    @functools.wraps(function)
    @ours.calling
    def call(*args, **kwargs):
        active = current_step.active
        if not tfi.executing_eagerly():
            return forms.steps.for_graph()(*args, **kwargs)
        if active is not None:
            return (forms.form if active.thread == get_ident() else function)(*args, **kwargs)
        if left_out or not outside_calls.may_begin():
            return function(*args, **kwargs)
        try:
            if len(seen) == _LOOKS:
                if lasting is None:
                    _helped[0] += 1
                    return forms.steps(*args, **kwargs)
                if not args or not _may_last(args[0]) or not lasting.begin(args[0]):
                    return function(*args, **kwargs)
                _helped[0] += 1
                return forms.steps.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
            before, tensors, start = _steps_begun(), tfi.next_tensor_id(), time.perf_counter()
            result = function(*args, **kwargs)
        except BaseException as error:
            tracebacks.clean(error)
            raise
        is_short = not seen or time.perf_counter() - start < _LONGEST  # the first call may well be what loads kernels
        is_one = is_short and _steps_begun() == before and _FEWEST <= tfi.next_tensor_id() - tensors <= _MOST
        _helped[0] += is_one  # so that a helper which calls it is none
        (seen if is_one else left_out).append(True)
        return result

    made = standing_in(function, call)
    STEPS[made] = forms
    return made


def _may_last(instance):
    """Returns whether an instance can have steps that live as long as it does."""
    return type(getattr(instance, "__dict__", None)) is dict and hasattr(type(instance), "__weakref__")


def _steps_begun():
    return gradient_tape.begun() + outside_calls.made() + _calls[0] + _helped[0]


def steps_of(function):
    """Returns the co-executed function behind one with a tape in it, or a helper; None if `function` is another one."""
    found = STEPS.get(function) if type(function) is types.FunctionType else None
    return found.steps if type(found) is _Helper else found


def block(function):
    """A decorator for a function that was made of a block and what follows it: each call is a co-executed step."""
    code = function.__code__
    function.__qualname__ = f"the block at {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    _seen[code] = [True]
    call, places = step(1)(function), filled_in(function)
    return call if not places else _filling(call, places)


def _filling(call, places):
    """Returns a function that calls another one, with a `Filled` in the place of each list, or deque, at these positions."""
    stands_for = {place: Filled() for place in places}

    @ours.calling
    def called(*args):
        given = [*args]
        before = {place: filled.stand_for(args[place]) for place, filled in stands_for.items() if type(args[place]) in GROWING}
        for place in before:
            given[place] = stands_for[place]
        try:
            return call(*given)
        finally:
            for place, container in before.items():
                stands_for[place].stand_for(container)

    return called


def install(options, preparations):
    """Make the tapes of all modules steps, with these options, and have modules imported from now on compiled with the decorators.

    preparations: {name of a library's module: what to do with it when it has been imported}.
    """
    gradient_tape.set_defaults(options)
    launch.decorators.update({made.__name__: made for made in (instrumented, step, helper, helping_method, block)})
    launch.preparations.update(preparations)
    for name, prepare in preparations.items():
        if name in sys.modules:
            prepare(sys.modules[name])
    tf = tfi.tf
    for home in (tf, tf.autodiff, tf.compat.v1, tf.compat.v2, tf.compat.v2.autodiff):
        home.GradientTape = gradient_tape.GradientTape
    launch.look_for_modules()


def finish():
    """End the step that may be open, wait for what is in flight, and raise what was not raised yet."""
    interception.end_open_step()
    GRAPH_RUNNER.sync()
    gradient_tape.raise_late_error()
