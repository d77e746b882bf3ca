"""Which function runs in place of which: instrumented forms, made on first use and kept.

`resolve` is what a call site asks (through `Cursor.enter`) when the inline cache of its location does not know the callee.
It costs some 50-150 ns and never raises: what can not be instrumented is called as it is, with a debug-level note.

Decisions are kept per code object, so that closures made anew at each call share one. Functions and classes are held
weakly; code objects are held, to keep their ids from being used again.
"""

import functools
import logging
import weakref
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from terra.frameworks import libraries
from terra.location import location
from terra.transform import classes, policy, wrappers
from .factory import Factory, NothingToDo
from .forms import asked_for, clear_forms, drop_form, forms, is_changed, keep_form, lock
from terra.transform.observing.value_sources import Unobservable
from .source import NoSource, codes_within

OUTSIDE = location.OUTSIDE
prepared = classes.prepared
log = logging.getLogger("terra")

_decisions = {}  # id(code) -> Decision
_plain = set()  # ids of the code objects that have nothing to instrument; `_decisions` holds them
_factories = {}  # id(instrumented code) -> its Factory, which holds it
_around = {}  # id(code in an instrumented or observed form) -> the Factory of that
_observable = {}  # (id(code), whether to instrument) -> (that code, the Factory that makes the observed form; None: there is none)
_observed = {}  # id(code) -> (code, the Factory that made it; None: it is within another), of observed forms
_kinds = {}  # id(class) -> (weak reference to it, its own __call__ or None)


class Decision:
    """The decision on the functions of one code object: `factory` makes their instrumented forms, if there is one; `outer` made that of a function
    which they are made in."""

    __slots__ = ("code", "factory", "reason", "is_instrumented", "only_forced", "outer")

    def __init__(self, code, factory=None, reason=None, is_instrumented=False, only_forced=False, outer=None):
        self.code = code
        self.outer = outer
        self.factory = factory
        self.reason = reason
        self.is_instrumented = is_instrumented
        self.only_forced = only_forced  # library code: its forms are for those who asked for them, not for call sites


LIBRARY = "library code"
NOTHING = "has nothing to instrument"


def decide(function, forced=False):
    """The Decision for a Python function; `forced` ignores that it may be library code."""
    decision = _decisions.get(id(function.__code__))
    if decision is None or (forced and decision.reason is LIBRARY):
        with lock:
            decision = _decisions.get(id(function.__code__))
            if decision is None or (forced and decision.reason is LIBRARY):
                decision = _decide(function, forced)
                _decisions[id(function.__code__)] = decision
    return decision


def _decide(function, forced):
    code = function.__code__
    if not forced and not policy.is_user_code(function):
        return Decision(code, reason=LIBRARY)
    try:
        factory = Factory(function)
    except NothingToDo:
        _plain.add(id(code))
        return Decision(code, reason=NOTHING, is_instrumented=True, only_forced=forced and not policy.is_user_code(function))
    except NoSource as error:
        reason = str(error)
    except RecursionError:
        reason = "its syntax tree is nested too deeply"
    except Exception as error:  # whatever goes wrong here must not stop the user's program
        reason = f"{type(error).__name__}: {error}"
        log.debug("could not instrument %s", function.__qualname__, exc_info=True)
    else:
        only_forced = forced and not policy.is_user_code(function)
        keep_factory(factory, None if only_forced else factory)
        return Decision(code, factory=factory, only_forced=only_forced)
    log.debug("%s runs without instrumentation: %s", function.__qualname__, reason)
    return Decision(code, reason=reason)


def keep_factory(factory, outer):
    """Keeps a Factory, whose code is instrumented; `outer`: that of the functions in it, if call sites are to use these."""
    for inner in codes_within(factory.code):
        _decisions[id(inner)] = Decision(inner, is_instrumented=True, outer=outer)
        _around[id(inner)] = factory
    _factories[id(factory.code)] = factory


def factory_of(form):
    """Returns the Factory that made an instrumented form; None if `form` is none."""
    return _factories.get(id(form.__code__))


def function_form(function, forced=False):
    """The function to run in place of a Python function: its instrumented form, or itself."""
    decision = _decisions.get(id(function.__code__))
    if decision is None or forced:
        decision = decide(function, forced)
    elif decision.is_instrumented:
        decision = decide(_with_own_code(function))
    if decision.factory is None or (decision.only_forced and not forced):
        if (decision.reason is LIBRARY or decision.only_forced) and wrappers.is_wrapper(function):
            return _wrapper_form(function)
        return function
    kept = asked_for if decision.only_forced else forms
    entry = kept.get(id(function))
    if entry is not None and entry.form.__code__ is decision.factory.code:
        return entry.form
    return keep_form(function, decision.factory.function_like(function), kept)


def renew_forms(functions):
    """These functions, which were changed in place, get new forms when they are called."""
    edited = set(map(id, functions))
    with lock:
        for key in list(forms):  # (of the items, garbage might be collected, and with it some of them)
            form = forms.get(key)
            if form is not None and (key in edited or wrappers.is_wrapper(form.function())):  # a form of that may have one of theirs inside
                drop_form(forms, key)
        for key in edited:
            drop_form(asked_for, key)
        _kinds.clear()
        classes.renew(edited)
    location.forget_callees()


def own_code(code):
    """The code that the user wrote, of which `code` may be the instrumented or observed form."""
    factory = _observed.get(id(code), (None, None))[1] or _factories.get(id(code))
    return code if factory is None else factory.original


def own_codes(code):
    """Lists the user's own code objects of which `code` may be the instrumented or observed form, or a function within one: several where they have
    the same name, line and parameters."""
    factory = _around.get(id(code))
    if factory is None:
        return [code]
    return [own for own in codes_within(factory.original) if _looks_of(own) == _looks_of(code)]


def only_own_code(code):
    """Returns the user's own code of which `code` is the instrumented or observed form; None if there are several that may be."""
    found = own_codes(code)
    return found[0] if len(found) == 1 else None


def _looks_of(code):
    return code.co_name, code.co_firstlineno, code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]


def observed_form(function, instrumented=True):
    """The observed form of a user's Python function, or of its instrumented form; raises Unobservable, with the reason, where there is none.

    instrumented: whether it keeps its locations even if `function` itself does not.
    """
    factory = _observable_factory(function, instrumented)
    return factory.function_like(function, _observed_code(factory))


def observed_code(function):
    """Code to run in place of `function`'s own, instrumented or not: the same, but observed. Raises Unobservable."""
    return _observed_code(_observable_factory(function, False))


def is_observable(function):
    """Returns whether a function has an observed form."""
    try:
        observed_code(function)
    except Unobservable:
        return False
    return True


def names_shown(function):
    """The names of global variables, and of those of functions around, that the observed form of a user's function shows the observer."""
    try:
        return _observable_factory(function, True).shown
    except Unobservable:
        return ()


def is_instrumented(code):
    """Is it instrumented code, or code that has nothing to instrument?"""
    decision = _decisions.get(id(code))
    return decision is not None and decision.is_instrumented


def is_observed(code):
    """Is it the code of an observed form, or within one?"""
    return id(code) in _observed


def _observed_code(factory):
    code = factory.observed
    if id(code) not in _observed:
        for inner in codes_within(code):
            _observed[id(inner)] = inner, factory if inner is code else None
            _decisions[id(inner)] = Decision(inner, is_instrumented=True)
            _around[id(inner)] = factory
    return code


def _with_own_code(function):
    """`function`, or where it has its observed code for the time being, the same with the code it had before."""
    _, factory = _observed.get(id(function.__code__), (None, None))
    if factory is None:
        return function
    return factory.function_like(function, factory.original if factory.plain else factory.code)


def _observable_factory(function, instrumented):
    """The Factory for the observed form of a function; `instrumented`: whether its locations are kept even if those of `function` itself are not."""
    function = _with_own_code(function)
    code = function.__code__
    factory = _factories.get(id(code))
    if factory is not None:
        return factory
    found = _observable.get((id(code), instrumented))
    if found is None:
        with lock:
            found = _observable[id(code), instrumented] = code, _make_observable(function, instrumented)
    if found[1] is None:
        raise Unobservable(f"{function.__qualname__} has no source that could be observed")
    return found[1]


def _make_observable(function, instrumented):
    decision = decide(function)
    if (decision.reason is LIBRARY or decision.only_forced) and _is_observed_only(function):
        instrumented = False
    elif decision.only_forced or (decision.factory is None and decision.outer is None and decision.reason is not NOTHING):
        return None  # (all functions of TensorFlow's share the code of one wrapper: one that is a step says nothing about the others)
    if instrumented and decision.factory is not None:
        return decision.factory
    try:
        if decision.outer is not None:
            return Factory.within(decision.outer, function)
        return Factory(function, anyway=True, plain=not instrumented)
    except Exception:  # it was found a moment ago: the file has changed
        log.debug("could not observe %s", function.__qualname__, exc_info=True)
        return None


def _is_observed_only(function):
    """Returns whether it is a function of a library, unless the program has said that this is not to be changed."""
    name = function.__globals__.get("__name__")
    return libraries.package_of(name) in libraries.UNINSTRUMENTED or not policy.is_excluded(name)


def _wrapper_form(function):
    """A library's wrapper around a user's function (``contextlib.contextmanager``), with the instrumented one inside."""
    entry = forms.get(id(function))
    if entry is not None:
        return entry.form
    inner = function.__wrapped__
    form = function_form(inner) if type(inner) is FunctionType else inner
    return function if form is inner else keep_form(function, wrappers.around(function, inner, form))


def resolve(there, callee):
    """Returns what a call site calls in place of `callee`; see `location.set_resolver`. Ordered by what is frequent."""
    kind = type(callee)
    if kind is FunctionType:
        if id(callee.__code__) in _plain:
            form = callee
        else:
            entry = forms.get(id(callee))  # held weakly: an entry is never that of a function that is gone
            form = function_form(callee) if entry is None else entry.form
            if there is OUTSIDE and entry is not None and is_changed(callee, entry):  # outside of steps, nobody has looked for edits
                return callee
        # The inline cache holds what it knows; closures hold tensors and models, so they stay out of it.
        if callee.__closure__ is None and there is not OUTSIDE:
            there.target = form
            there.callee = callee
        return form
    if kind is MethodType:
        function = callee.__func__
        if type(function) is not FunctionType:
            return callee
        owner = type(callee.__self__)
        if id(owner) not in prepared:
            classes.prepare(owner)
        form = resolve(there, function)
        return callee if form is function else MethodType(form, callee.__self__)
    if kind is BuiltinFunctionType:
        if there is not OUTSIDE and type(callee.__self__) is ModuleType:
            there.target = there.callee = callee
        return callee
    if kind is type:
        if id(callee) not in prepared:
            classes.prepare(callee)
        return callee
    entry = _kinds.get(id(kind)) or _look_at_kind(kind)
    form = entry[1]
    return callee if form is None else form(callee)


def _look_at_kind(kind):
    """How instances of a class are called: None for "as they are"."""
    with lock:
        handler = None
        if issubclass(kind, functools.partial):
            handler = _partial_form if kind is functools.partial else None
        elif issubclass(kind, type):
            handler = _class_form
        elif kind is wrappers.CACHED:
            handler = _cached_form
        else:
            call = _static_lookup(kind, "__call__")
            if type(call) is FunctionType:
                if function_form(call) is not call:
                    handler = functools.partial(_instance_form, kind)
            classes.prepare(kind)
        key = id(kind)
        _kinds[key] = weakref.ref(kind, lambda _: _kinds.pop(key, None)), handler
        return _kinds[key]


def _static_lookup(kind, name):
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def _instance_form(kind, instance):
    """The bound ``__call__`` of an instance of a user's class, instrumented. Looked up anew: it may have been replaced."""
    call = _static_lookup(type(instance), "__call__")
    if type(call) is not FunctionType:
        return instance
    form = function_form(call)
    return instance if form is call else MethodType(form, instance)


def _class_form(cls):
    """A class is called as it is; ``__init__`` and what else Python calls by name is instrumented in place."""
    classes.prepare(cls)
    return cls


def _cached_form(cached):
    """Instruments what ``functools.lru_cache`` made, in place, and gives it back: the cache must stay the one that the user sees, so its function
    changes its code."""
    function = cached.__wrapped__
    if type(function) is FunctionType:
        form = function_form(function)
        if form is not function:
            wrappers.exchange_code(function, form)
    return cached


def _partial_form(partial):
    function = partial.func
    form = function_form(function) if type(function) is FunctionType else function
    return partial if form is function else functools.partial(form, *partial.args, **partial.keywords)


def _forget_library_decisions():
    with lock:
        for key, decision in list(_decisions.items()):
            if decision.reason is LIBRARY or decision.factory is not None:
                del _decisions[key]
        _kinds.clear()
        clear_forms()
        classes.forget()


classes.function_form = function_form
policy.on_change(_forget_library_decisions)
location.set_resolver(resolve)
