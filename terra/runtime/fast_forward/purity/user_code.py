"""The user's code that the framework calls: a layer of the user's in a Sequential, a learning rate schedule, an activation, a loss.

A call of the framework's is skipped only if nothing of the user's could be missed. Where its object holds functions or subclasses of the user's, they are
observed while the call is recorded: for as long as it takes, their code is exchanged for their observed form, and a profile function looks out
for code of the user's that was called but not observed.
"""

import inspect
from types import FunctionType, MethodType
from typing import Any, Iterable, NamedTuple

from terra.runtime.fast_forward.cache.call_watch import ASKS_FOR, WRITERS, look_out, note_filters, observed_in_place, writes
from terra.runtime.fast_forward.purity.facts import lifetimes
from terra.runtime.fast_forward.purity.observer import Observer
from terra.runtime.fast_forward.sources.late_values import OpaqueNumbers, ShownArrays
from terra.runtime.fast_forward.sources.effects import tensors_within
from terra.runtime.interpreter import frames
from terra.runtime.tensors.comparing import Unskippable
from terra.runtime.tensors.object_kinds import containers_in, is_librarys
from terra.tf import private_names as tfi
from terra.transform import convert, policy


class UserRun(NamedTuple):
    """A call that may have run functions of the user's."""

    result: Any
    reads: Any = None  # what they read; None if they were not pure
    differentiates: bool = False  # whether the tapes were told of gradient functions of the program's
    effects: Iterable = ()  # theirs
    opaque: Any = None  # their opaque calls
    numbers: Any = None  # that these give
    why: "str | None" = None  # they were not pure
    carries: Iterable = ()  # `StateInput`s: the attributes that should count as arguments
    passed_on: Iterable = ()  # ids of the tensors in those that do, if nothing has looked at them
    too_early: int = 0  # calls after which a part of them can be skipped, where that is why they were not pure


def observe(runner, users, covered, inputs, call, states=()):
    """Make `call`, which may run these functions, and methods of these classes. Returns a `UserRun`.

    covered: the containers of what the framework reads in it.
    inputs: the `Inputs` of the call.
    states: {(id of an object, name): `StateInput`} of the attributes that count as its arguments.
    """
    step = runner.step.function
    if (runner.observer is not None and runner.observer.covered is not None) or not step.located or step.options.fast_forward == "framework":
        return UserRun(call(), why=_IMPURE)
    dynamic, shown = OpaqueNumbers(runner.step, inputs), runner.step.shown
    observer = Observer(runner, set(inputs.composites), dynamic, covered=covered, inputs=inputs, carried=states)
    run = observer.run
    runner.step.shown = ShownArrays(runner.step, dynamic, shown)
    replaced = []  # (what tf.custom_gradient has made, the function that it has made it of)
    called, arguments, defaults, warned, wanted = {}, [], set(), [], []
    held, looked_at = {key: state.value() for key, state in states.items()}, set()

    def is_known(found):
        """The framework's code asks for an attribute: it finds what the run itself has set, or what counts as an argument."""
        if found in held and found not in run.effects:
            looked_at.add(found)
        return found in held

    def note(frame):
        code = frame.f_code
        if run.is_inside_opaque:
            return
        if not convert.is_observed(code):
            run.impure(f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) is called by the framework and was not observed")
            return
        called[id(code)] = code
        held = _arguments(frame) if _called_by_framework(frame) else ()
        for x in held:
            for container in containers_in(x):
                if id(container) not in defaults:  # it may come from the framework, as the same one the next time
                    run.give(container)
                    arguments.append(container)
            if type(x) in _READ_ONCE and not run.born.has(x) and lifetimes.is_held_by_frames_only(x, frame, held):  # the framework has made it in this call
                run.fresh(x)

    def note_builtin(frame, function):
        if writes(function) and not run.is_inside_opaque:
            run.impure(f"has {frame.f_code.co_name} write something")  # a method that the user's code calls may be any of the framework's

    try:
        with observed_in_place(function for function in _functions(users) if not policy.is_pure(function.__globals__.get("__name__"))) as exchanged:
            for function, _ in exchanged:
                defaults.update(map(id, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())))
            for thing in users:
                function = tfi.has_custom_gradient(thing)
                if function is not None:
                    replaced.append((thing, function))
                    tfi.set_custom_gradient(thing, run.functionals.differentiated(function))
            with observer:
                result = look_out(call, note, lambda name: run.is_inside_opaque or warned.append(name), note_builtin, covered=covered, wanted=wanted, builtins=WRITERS, is_known=is_known)
    finally:
        runner.step.shown = shown
        for thing, function in replaced:
            tfi.set_custom_gradient(thing, function)
    for function in [*run.calls.exchanged, *(function for function, code in exchanged if id(code) in called)]:
        run.note_called(function)
    for cls in users:
        if isinstance(cls, type):
            for base in cls.__mro__:
                if not is_librarys(base) and base is not object:
                    run.reads.contents(vars(base), base)
    if warned:
        note_filters(run.reads.contents)
    if wanted:
        run.impure(ASKS_FOR.format(", ".join(wanted)))
    if _gives_any(result, run.ids_of_containers() | covered.ids()):
        observer.conclusion.release()
        return UserRun(result, why="gives a list or dict that was there before")  # which the program may go on to change
    effects, opaque, numbers = run.effects.values(), run.opaque, run.dynamic
    try:
        passed_on = {id(x) for key, value in held.items() if key not in looked_at for x in tensors_within(value)} - run.used - inputs.enclosed
        return UserRun(result, observer.conclusion.finish_inside(runner.observer), run.differentiates, effects, opaque, numbers, passed_on=passed_on)
    except Unskippable:
        return UserRun(result, why=f"{_IMPURE}: it {run.reason}" if run.reason else _IMPURE, carries=observer.conclusion.carries, too_early=run.too_early)


_IMPURE = "runs functions of the user's that do more than compute"

_READ_ONCE = frozenset([zip, enumerate, reversed])


def _gives_any(result, ids):
    """Whether a list or dict in the result of a call is one of these."""
    kind = type(result)
    if kind is not tuple and kind is not list and kind is not dict:
        return False
    if kind is not tuple and id(result) in ids:
        return True
    return any(_gives_any(x, ids) for x in (result.values() if kind is dict else result))


def _arguments(frame):
    """The arguments of a call that begins."""
    code = frame.f_code
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    held = frame.f_locals
    return [held[name] for name in code.co_varnames[:n] if name in held]


def _called_by_framework(frame):
    """Whether it is not the user's code, which is observed, that has made a call."""
    caller = frame.f_back
    return caller is None or not convert.is_observed(frames.around_ours(caller).f_code)


def _functions(users):
    """The Python functions among these functions, methods and classes."""
    for thing in users:
        if isinstance(thing, type):
            for base in thing.__mro__:
                if not is_librarys(base) and base is not object:
                    for value in vars(base).values():
                        if isinstance(value, (property, classmethod, staticmethod)):
                            value = value.fget if isinstance(value, property) else value.__func__
                        if type(value) is FunctionType:
                            yield value
        else:
            function = thing.__func__ if type(thing) is MethodType else thing
            if type(function) is FunctionType:
                yield function
