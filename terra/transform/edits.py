"""Functions that are changed in place: what runs instead of them must follow.

IPython's ``%autoreload``, for one, gives the functions of a module that was edited their new code and defaults, so that whoever has imported them
has the new ones. An instrumented form has code and defaults of its own, and call sites remember it (see `location.Cursor.enter`). So the functions
that have one are looked at when a step begins: 0.15 us each.
"""

from terra.transform import convert

__all__ = ["look", "found"]

_found = 0


def found():
    """How often functions with a form were found changed so far: those that are called since have new forms."""
    return _found


def look():
    """Looks at all functions with a form, gives those new ones that were changed, and returns what `found` does."""
    global _found
    changed = []
    for kept in convert.forms, convert.asked_for:
        for reference, _, code, defaults, kwdefaults in list(kept.values()):
            function = reference()
            if function is not None and (function.__code__ is not code or function.__defaults__ is not defaults or function.__kwdefaults__ is not kwdefaults):
                changed.append((function, code))
    if changed:
        _found += _follow(changed)
    return _found


def _follow(changed):
    """Give these functions, of (function, code it had), new forms where their code is another, and forms their defaults; whether there is any of other code."""
    edited = []
    for function, code in changed:
        if _is_the_same(convert.own_code(function.__code__), convert.own_code(code)):
            convert.refresh_form(function)
        else:
            edited.append(function)
    if edited:
        convert.renew_forms(edited)
    return bool(edited)


def _is_the_same(new, old):
    """Reloading a module gives all its functions other code objects, of which most are equal."""
    return new is old or (new == old and new.co_filename == old.co_filename and new.co_linetable == old.co_linetable)
