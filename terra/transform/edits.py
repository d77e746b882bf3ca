"""Functions that are changed in place: what runs instead of them must follow.

IPython's ``%autoreload``, for one, gives the functions of a module that was edited their new code and defaults, so that whoever has imported them
has the new ones. An instrumented form has code and defaults of its own, and call sites remember it (see `location.Cursor.enter`). So the functions
that have one are looked at when a step begins: 0.15 us each.
"""

from . import convert

__all__ = ["look"]

_known = (-1, ())  # (turnover of the forms, what the functions were like when their forms were made)
_edits = 0


def look():
    """How often functions with a form were found changed so far: those that are called from now on have new forms."""
    global _known, _edits
    turnover, known = _known
    if turnover != convert.turnover:
        turnover = convert.turnover
        known = [(form.function, form.code, form.defaults, form.kwdefaults) for form in list(convert.forms.values())]
        _known = turnover, known
    if not _are_the_same(known):
        _known = -1, ()
        edited = _follow()
        if edited:
            convert.renew_forms(edited)
            _edits += 1
    return _edits


def _are_the_same(known):
    for reference, code, defaults, kwdefaults in known:
        function = reference()
        if function is not None and (function.__code__ is not code or function.__defaults__ is not defaults or function.__kwdefaults__ is not kwdefaults):
            return False
    return True


def _follow():
    """Give forms the defaults that their functions have now; the functions that have other code."""
    edited = []
    for form in list(convert.forms.values()):
        function = form.function()
        if function is None:
            continue
        if convert.own_code(function.__code__) is not convert.own_code(form.code):
            edited.append(function)
        elif function.__defaults__ is not form.defaults or function.__kwdefaults__ is not form.kwdefaults:
            convert.refresh_form(function)
        elif not convert.is_observed(function.__code__):  # for a while only
            form.look(function)
    return edited
