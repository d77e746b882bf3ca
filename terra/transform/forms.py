"""The instrumented forms of functions: each is kept for as long as its function lives, with what that was like when the form was made."""

import threading
import weakref
from types import CodeType, FunctionType
from typing import Any, Callable, NamedTuple, Optional

lock = threading.RLock()
watched: Any = None  # tells whether any of the functions was changed in place, see `edits`; None as soon as there is another one, or one is gone


class Form(NamedTuple):
    """The instrumented `form` of a function, which is held weakly, and what that was like when it was made."""

    function: weakref.ref
    form: FunctionType
    code: CodeType
    defaults: Optional[tuple]
    kwdefaults: Optional[dict]


forms: dict[int, Form] = {}  # id(function) -> Form
asked_for: dict[int, Form] = {}  # the same of library code, for those who asked for it, not for call sites


def keep_form(function: FunctionType, form: FunctionType, kept: dict[int, Form] = forms) -> FunctionType:
    """Keeps the form of a function, and returns it."""
    key = id(function)
    with lock:
        _set(kept, function, weakref.ref(function, lambda _, drop=drop_form: drop(kept, key)), form)
    return form


def is_changed(function: FunctionType, form: Form) -> bool:
    """Returns whether a function was changed in place since its form was made."""
    return function.__code__ is not form.code or function.__defaults__ is not form.defaults or function.__kwdefaults__ is not form.kwdefaults


def drop_form(kept: dict[int, Form], key: int) -> None:
    """Forgets a form; its function may be gone, and nobody looks at where it was from here on."""
    global watched
    watched = None
    kept.pop(key, None)


def clear_forms() -> None:
    """Forgets all forms."""
    global watched
    watched = None
    forms.clear()
    asked_for.clear()


def refresh_form(function: FunctionType) -> None:
    """The defaults of `function` were replaced: those of its instrumented form, which call sites keep, must follow."""
    for kept in forms, asked_for:
        entry = kept.get(id(function))
        if entry is not None and entry.function() is function:
            entry.form.__defaults__, entry.form.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
            _set(kept, function, entry.function, entry.form)


def watch_all(functions: list, watch: Callable[[list], Any]) -> None:
    """Sets `watched` to what `watch(functions)` gives, if these are all functions that have a form."""
    global watched
    with lock:
        if len(functions) == len(forms) + len(asked_for) and None not in functions:
            watched = watch(functions)


def _set(kept: dict[int, Form], function: FunctionType, reference: weakref.ref, form: FunctionType) -> None:
    global watched
    kept[id(function)] = Form(reference, form, function.__code__, function.__defaults__, function.__kwdefaults__)
    watched = None
