"""Functions that are changed in place: what runs instead of them must follow.

IPython's ``%autoreload``, for one, gives the functions of a module that was edited their new code and defaults, so that whoever has imported them
has the new ones. An instrumented form has code and defaults of its own, and call sites remember it (see `location.Cursor.enter`). So the functions
that have one are looked at when a step begins: 0.15 us each one by one, a few nanoseconds where all are looked at at once.
"""

from typing import Any, Callable

from terra.transform import convert, forms

__all__ = ["look", "found"]

watch: Callable[[list], Any] | None = None  # gives what tells whether functions are changed, see `tf.versions.watch`: set by who may look into memory
_found = 0
_looked_at = 0  # functions that the last look one by one has found


def found():
    """How often functions with a form were found changed so far: those that are called since have new forms."""
    return _found


def look():
    """Looks at all functions with a form, gives those new ones that were changed, and returns what `found` does."""
    global _found, _looked_at
    watched = forms.watched
    if watched is not None and watched[0].take(watched[1]).tobytes() == watched[2]:  # (no Python code runs between these, and so no function goes)
        return _found
    changed, functions = [], []
    for kept in forms.forms, forms.asked_for:
        for form in list(kept.values()):
            function = form.function()
            functions.append(function)
            if function is not None and forms.is_changed(function, form):
                changed.append((function, form.code))
    if changed:
        _found += _follow(changed)
    elif watch is not None and len(functions) == _looked_at:  # while the program begins, there are more each time
        forms.watch_all(functions, watch)
    _looked_at = len(functions)
    return _found


def _follow(changed):
    """Give these functions, of (function, code it had), new forms where their code is another, and forms their defaults; whether there is any of other code."""
    edited = []
    for function, code in changed:
        if _is_the_same(convert.own_code(function.__code__), convert.own_code(code)):
            forms.refresh_form(function)
        else:
            edited.append(function)
    if edited:
        convert.renew_forms(edited)
    return bool(edited)


def _is_the_same(new, old):
    """Reloading a module gives all its functions other code objects, of which most are equal."""
    return new is old or (new == old and new.co_filename == old.co_filename and new.co_linetable == old.co_linetable)
