"""Prints a syntax tree: astunparse's Unparser, extended to what it does not know (or gets wrong) on Python 3.10-3.13.

Added: match, ``except*``, starred subscripts, slices inside tuples, type parameters and type aliases, f-strings with nested
quotes, empty ``lambda``, readable docstrings, attributes of number literals.
"""

import ast
import io

from astunparse.unparser import Unparser as _Unparser
from astunparse.unparser import interleave

__all__ = ["unparse"]


def unparse(tree):
    """The source text of an `ast` tree."""
    if isinstance(tree, ast.AST) and isinstance(tree, ast.stmt):
        tree = ast.Module([tree], [])
    text = io.StringIO()
    Unparser(tree, text)
    return text.getvalue().strip("\n") + "\n"


def _expression(tree):
    text = io.StringIO()
    Unparser(tree, text)
    return text.getvalue().strip("\n")


class Unparser(_Unparser):
    def _comma_separated(self, nodes):
        interleave(lambda: self.write(", "), self.dispatch, nodes)

    def _block(self, body):
        self.enter()
        self.dispatch(body)
        self.leave()

    # --- statements ---

    def _Expr(self, t):
        if isinstance(t.value, ast.Constant) and isinstance(t.value.value, str) and "\n" in t.value.value:
            text = t.value.value.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
            if text.isprintable() or all(c.isprintable() or c in "\n" for c in text):
                if text.endswith('"'):
                    text = text[:-1] + '\\"'
                self.fill('"""' + text + '"""')
                return
        super()._Expr(t)

    def _decorated(self, t):
        self.write("\n")
        for decorator in t.decorator_list:
            self.fill("@")
            self.dispatch(decorator)

    def _type_params(self, t):
        if getattr(t, "type_params", None):
            self.write("[")
            self._comma_separated(t.type_params)
            self.write("]")

    def _type_param(self, t, stars=""):
        self.write(stars + t.name)
        if getattr(t, "bound", None):
            self.write(": ")
            self.dispatch(t.bound)
        if getattr(t, "default_value", None):
            self.write(" = ")
            self.dispatch(t.default_value)

    def _TypeVar(self, t):
        self._type_param(t)

    def _TypeVarTuple(self, t):
        self._type_param(t, "*")

    def _ParamSpec(self, t):
        self._type_param(t, "**")

    def _TypeAlias(self, t):
        self.fill("type ")
        self.dispatch(t.name)
        self._type_params(t)
        self.write(" = ")
        self.dispatch(t.value)

    def _FunctionDef(self, t, keyword="def"):
        self._decorated(t)
        self.fill(f"{keyword} {t.name}")
        self._type_params(t)
        self.write("(")
        self.dispatch(t.args)
        self.write(")")
        if t.returns:
            self.write(" -> ")
            self.dispatch(t.returns)
        self._block(t.body)

    def _AsyncFunctionDef(self, t):
        self._FunctionDef(t, "async def")

    def _ClassDef(self, t):
        self._decorated(t)
        self.fill("class " + t.name)
        self._type_params(t)
        if t.bases or t.keywords:
            self.write("(")
            self._comma_separated(t.bases + t.keywords)
            self.write(")")
        self._block(t.body)

    def _TryStar(self, t):
        self._Try(t, star="*")

    def _Try(self, t, star=""):
        self.fill("try")
        self._block(t.body)
        for handler in t.handlers:
            self.fill("except" + star)
            if handler.type:
                self.write(" ")
                self.dispatch(handler.type)
            if handler.name:
                self.write(" as " + handler.name)
            self._block(handler.body)
        for keyword, body in (("else", t.orelse), ("finally", t.finalbody)):
            if body:
                self.fill(keyword)
                self._block(body)

    # --- match ---

    def _Match(self, t):
        self.fill("match ")
        self.dispatch(t.subject)
        self._block(t.cases)

    def _match_case(self, t):
        self.fill("case ")
        self.dispatch(t.pattern)
        if t.guard:
            self.write(" if ")
            self.dispatch(t.guard)
        self._block(t.body)

    def _MatchValue(self, t):
        text = _expression(t.value)
        # -1 and 1+2j are patterns only without the parentheses that are put around operators.
        if isinstance(t.value, (ast.UnaryOp, ast.BinOp)):
            text = text.replace("(", "").replace(")", "")
        self.write(text)

    def _MatchSingleton(self, t):
        self.write(repr(t.value))

    def _MatchSequence(self, t):
        self.write("[")
        self._comma_separated(t.patterns)
        self.write("]")

    def _MatchStar(self, t):
        self.write("*" + (t.name or "_"))

    def _MatchMapping(self, t):
        def item(pair):
            key, pattern = pair
            if key is None:
                self.write("**" + pattern)
            else:
                self._MatchValue(ast.MatchValue(key))
                self.write(": ")
                self.dispatch(pattern)

        self.write("{")
        rest = [(None, t.rest)] if t.rest else []
        interleave(lambda: self.write(", "), item, list(zip(t.keys, t.patterns)) + rest)
        self.write("}")

    def _MatchClass(self, t):
        def keyword(pair):
            self.write(pair[0] + "=")
            self.dispatch(pair[1])

        self.dispatch(t.cls)
        self.write("(")
        self._comma_separated(t.patterns)
        if t.patterns and t.kwd_attrs:
            self.write(", ")
        interleave(lambda: self.write(", "), keyword, list(zip(t.kwd_attrs, t.kwd_patterns)))
        self.write(")")

    def _MatchAs(self, t):
        if t.pattern is None:
            self.write(t.name or "_")
        else:
            self.write("(")
            self.dispatch(t.pattern)
            self.write(f" as {t.name})")

    def _MatchOr(self, t):
        self.write("(")
        interleave(lambda: self.write(" | "), self.dispatch, t.patterns)
        self.write(")")

    # --- expressions ---

    def _Attribute(self, t):
        number = isinstance(t.value, ast.Constant) and isinstance(t.value.value, (int, float, complex)) \
            and not isinstance(t.value.value, bool)
        self.write("(" if number else "")
        self.dispatch(t.value)
        self.write(")" if number else "")
        self.write("." + t.attr)

    def _Subscript(self, t):
        self.dispatch(t.value)
        self.write("[")
        index = t.slice
        # A tuple that holds slices or (from 3.11) stars may not stand in parentheses.
        if isinstance(index, ast.Tuple) and any(isinstance(e, (ast.Slice, ast.Starred)) for e in index.elts):
            self._comma_separated(index.elts)
            self.write("," if len(index.elts) == 1 else "")
        else:
            self.dispatch(index)
        self.write("]")

    def _Starred(self, t):
        self.write("*")
        self.dispatch(t.value)

    def _Lambda(self, t):
        args = t.args
        empty = not (args.posonlyargs or args.args or args.vararg or args.kwonlyargs or args.kwarg)
        self.write("(lambda" + ("" if empty else " "))
        self.dispatch(args)
        self.write(": ")
        self.dispatch(t.body)
        self.write(")")

    def _JoinedStr(self, t):
        text = self._f_string(t)
        if text is None:  # no quotes are left for it on this Python: the same value in other words
            self._join_parts(t)
        else:
            self.write(text)

    def _FormattedValue(self, t):
        self._JoinedStr(ast.JoinedStr([t]))

    def _f_string(self, t):
        """The literal with the first kind of quotes that gives the same tree back; None if there is none."""
        for quotes in ("'", '"', '"""', "'''"):
            try:
                text = "f" + quotes + self._f_string_body(t, quotes) + quotes
                back = ast.parse(text, mode="eval").body
                if isinstance(back, ast.JoinedStr) and ast.dump(_merged(back)) == ast.dump(_merged(t)):
                    return text
            except SyntaxError:
                pass
        return None

    def _f_string_body(self, t, quotes, in_spec=False):
        parts = []
        for value in t.values:
            if isinstance(value, ast.FormattedValue):
                inner = _expression(value.value)
                parts.append("{" + (" " if inner.startswith("{") else "") + inner)
                if value.conversion != -1:
                    parts.append("!" + chr(value.conversion))
                if value.format_spec:
                    parts.append(":" + self._f_string_body(value.format_spec, quotes, True))
                parts.append("}")
            else:
                text = value.value
                escaped = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else \
                    text.replace("\\", "\\\\")
                escaped = escaped.replace("{", "{{").replace("}", "}}")
                parts.append(escaped.replace(quotes[0], "\\" + quotes[0]))
        return "".join(parts)

    def _join_parts(self, t):
        self.write("''.join((")
        for value in t.values:
            if isinstance(value, ast.FormattedValue):
                function = {115: "str", 114: "repr", 97: "ascii"}.get(value.conversion)
                self.write("format(" + (function + "(" if function else ""))
                self.dispatch(value.value)
                self.write(")" if function else "")
                if value.format_spec:
                    self.write(", ")
                    self.dispatch(value.format_spec)
                self.write("), ")
            else:
                self.write(repr(value.value) + ", ")
        self.write("))")


def _merged(t):
    """An f-string's tree as the parser would give it: neighbouring literals are one."""
    values = []
    for value in t.values:
        if isinstance(value, ast.FormattedValue):
            spec = value.format_spec and _merged(value.format_spec)
            # The expression as it reads back, so that only the literal parts are compared.
            values.append(ast.FormattedValue(ast.parse(_expression(value.value), mode="eval").body,
                                             value.conversion, spec))
        elif values and isinstance(values[-1], ast.Constant):
            values[-1] = ast.Constant(values[-1].value + value.value)
        elif value.value:
            values.append(ast.Constant(value.value))
    return ast.JoinedStr(values)
