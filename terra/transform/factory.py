"""From an instrumented tree to functions that share everything with the user's own function but the code.

The tree keeps the user's positions and is compiled as a tree, under the user's file name: tracebacks, ``inspect``,
debuggers and coverage see the user's lines. `Factory.code_text` prints the same tree.

Around the function goes only what its code depends on: a scope that binds its free variables, and the classes and
functions between it and the innermost class (private names, ``__class__``). That module is compiled but never run; the
function's code object is taken out of it and put together with the original cells, globals and defaults.

Generated code reaches the run-time through a constant: the tree names it ``_terra_tls``, and in the compiled code a marker
constant is replaced by the object itself. So nothing is added to globals, closures (AutoGraph and pickle look at those) or
signatures, and reading it is the fastest thing there is.
"""

import ast
import copy
import inspect
import sys
import types

import gast

from terra.location import location
from terra.transform import source
from terra.transform.observing.observed import Observed
from terra.transform.observing.value_sources import Unobservable
from terra.transform.rewriting import unparser
from terra.transform.rewriting.instrumenter import Instrumenter
from terra.transform.rewriting.raising import keeps_line

__all__ = ["Factory", "NothingToDo"]

_SCOPE = "_terra_scope"
_MARK = "\0terra.runtime.location.tls"
_KIND_FLAGS = (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE
               | inspect.CO_ASYNC_GENERATOR)
_FUTURE_FLAGS = 0
for _name in __import__("__future__").all_feature_names:
    _FUTURE_FLAGS |= getattr(__import__("__future__"), _name).compiler_flag


class NothingToDo(Exception):
    """The function has no call, no loop and nothing nested that has: it stays as it is."""


def _arguments(code):
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_varnames[:count]


def _fits(new, old):
    """Can `new` take the place of `old`? If the file was edited since it was imported, perhaps not."""
    return (_arguments(new) == _arguments(old) and (new.co_flags & _KIND_FLAGS) == (old.co_flags & _KIND_FLAGS)
            and set(new.co_freevars) <= set(old.co_freevars))


class Factory:
    """The instrumented form of one code object; makes functions from it.

    Raises NothingToDo if there is nothing to instrument, unless `anyway`. With `plain` nothing is instrumented: it is made for its observed form only.
    """

    def __init__(self, function, anyway=False, plain=False):
        node, self._ancestors = source.find(function)
        self._make(function, node, plain, self._register, anyway or plain)

    def _make(self, function, node, plain, register, anyway):
        """Instrument the `ast` node of a function."""
        self.original = original = function.__code__
        self.plain, self.sites, self._observed, self.shown = plain, [], None, ()
        self._qualname = qualname = getattr(original, "co_qualname", function.__qualname__)
        shadowing = function.__globals__, original.co_freevars
        instrumenter = Instrumenter(register, lambda name: any(name in names for names in shadowing), qualname)
        self.tree = gast.ast_to_gast(node)
        self.tree = instrumenter.begin(self.tree) if plain else instrumenter.instrument(self.tree)
        if not (instrumenter.count or instrumenter.changed or anyway):
            raise NothingToDo
        self.tls_name = instrumenter.tls
        self._prefix = instrumenter.prefix
        self.code = self._compile(self.tree)

    @classmethod
    def within(cls, outer, function):
        """That of a function which is made inside of one that the Factory `outer` has instrumented. Raises NoSource if its place there is not known."""
        new = cls.__new__(cls)
        new.original = new.code = code = function.__code__
        new.plain, new.sites, new._observed, new.shown = False, [], None, ()
        new.tree, around = _find_node(outer.tree, code)
        new._ancestors = [*outer._ancestors, *map(_stub, around)]
        new.tls_name, new._prefix = outer.tls_name, outer._prefix
        new._qualname = getattr(code, "co_qualname", function.__qualname__)
        return new

    @classmethod
    def of_head(cls, whole, function, node, plain):
        """That of the first statements of a function, `node`, which keep the locations that they have in the whole one."""
        new, known = cls.__new__(cls), iter(whole.sites)
        new._ancestors = whole._ancestors

        def register(*_):
            new.sites.append(next(known))
            return new.sites[-1]

        new._make(function, node, plain, register, True)
        return new

    def code_of_tail(self, node):
        """Returns the code of the last statements of the function, `node`."""
        return self._compile(gast.ast_to_gast(node), lambda code, _: True)

    def _register(self, kind, lineno, function, first_argument=None):
        new = location.register_site(kind, self.original.co_filename, lineno, function, first_argument)
        self.sites.append(new)
        return new

    @property
    def code_text(self):
        """The instrumented source, and what its ids stand for."""
        lines = [f"# {self.original.co_filename}:{self.original.co_firstlineno}, instrumented"]
        for id_ in self.sites:
            place = location.site(id_)
            lines.append(f"# {id_}: {place.kind} at line {place.lineno} in {place.function}")
        lines.append(f"from terra.location.location import tls as {self.tls_name}")
        return "\n".join(lines) + "\n\n" + unparser.unparse(gast.gast_to_ast(self.tree))

    # --- compiling ---

    def _compile(self, tree, fits=_fits):
        original, qualname = self.original, self._qualname
        target = _MarkRuntime(self.tls_name).visit(gast.gast_to_ast(tree))
        scope, inner_qualname = _scope(_bare(target), self._ancestors, original.co_freevars)
        module = ast.Module([scope], [])
        ast.fix_missing_locations(module)
        compiled = source.compiled(module, original.co_filename, original.co_flags & _FUTURE_FLAGS)
        code = _find(compiled, original.co_name, original.co_firstlineno)
        if code is None or not fits(code, original):
            raise source.NoSource(f"the source of {qualname} does not match its code: has the file changed?")
        return _finished(code, inner_qualname, qualname, original.co_flags & inspect.CO_ITERABLE_COROUTINE)

    @property
    def observed(self):
        """The code of the observed form (see `observed`). Raises Unobservable."""
        if self._observed is None:
            try:
                transformer = Observed(self._prefix, self.tls_name, self._class_name(), self.original.co_freevars)
                self._observed = self._compile(transformer.observe(copy.deepcopy(self.tree)))
                self.shown = frozenset(map(transformer.mangled, transformer.shown))  # see `ReadSet.function`
            except Unobservable as error:
                self._observed = str(error)  # the error itself would keep the frames alive that it was raised in
        if type(self._observed) is str:
            raise Unobservable(self._observed)
        return self._observed

    def _class_name(self):
        """The name of the class that private names belong to, or None."""
        return next((node.name for node in reversed(self._ancestors) if isinstance(node, ast.ClassDef)), None)

    # --- functions ---

    def function_like(self, function, code=None):
        """`function` with the instrumented code, or another one: same globals, cells, defaults, attributes."""
        code = code or self.code
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        closure = tuple(cells[name] for name in code.co_freevars) or None
        new = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
        new.__kwdefaults__ = function.__kwdefaults__
        new.__dict__ = function.__dict__  # the same one: an attribute set on either is seen on both
        new.__qualname__ = function.__qualname__
        new.__module__ = function.__module__
        new.__doc__ = function.__doc__
        if sys.version_info >= (3, 14):
            new.__annotate__ = function.__annotate__
        else:
            new.__annotations__ = function.__annotations__
        if hasattr(function, "__type_params__"):
            new.__type_params__ = function.__type_params__
        return new


class _MarkRuntime(ast.NodeTransformer):
    def __init__(self, name):
        self.name = name

    def visit_Name(self, node):
        return ast.copy_location(ast.Constant(_MARK), node) if node.id == self.name else node


def _bare(target):
    """Without what only the evaluation of the ``def`` needs. Decorators stay as placeholders: they give the first line."""
    nothing = lambda at: ast.copy_location(ast.Constant(None), at)  # noqa: E731
    args = target.args
    args.defaults = [nothing(d) for d in args.defaults]
    args.kw_defaults = [d and nothing(d) for d in args.kw_defaults]
    for arg in args.posonlyargs + args.args + args.kwonlyargs + [args.vararg, args.kwarg]:
        if arg is not None:
            arg.annotation = None
    if isinstance(target, ast.Lambda):
        return ast.copy_location(ast.Expr(target), target)
    target.decorator_list = [nothing(d) for d in target.decorator_list]
    target.returns = None
    if hasattr(target, "type_params"):
        target.type_params = []  # free variables of the body, if it uses them
    return target


def _wrap(name, body, bound):
    """``def name(): body``, where names that the body binds are local if they are among `bound`, else global."""
    empty = ast.arguments(posonlyargs=[], args=[], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[])
    child = getattr(body[-1], "name", None)
    if child is not None and child not in bound:
        body = [ast.Global([child])] + body
    new = ast.FunctionDef(name=name, args=empty, body=body, decorator_list=[], returns=None, type_comment=None)
    if sys.version_info >= (3, 12):
        new.type_params = []
    return new


def _scope(target, ancestors, freevars):
    """`target` inside what its code depends on, and the qualified name that it has there."""
    classes = [i for i, a in enumerate(ancestors) if isinstance(a, ast.ClassDef)]
    chain = [target]
    for node in reversed(ancestors[classes[-1]:] if classes else ()):
        if isinstance(node, ast.ClassDef):
            outer = ast.ClassDef(name=node.name, bases=[], keywords=[], body=chain[:1], decorator_list=[])
            if sys.version_info >= (3, 12):
                outer.type_params = []
        else:
            outer = _wrap(getattr(node, "name", "_lambda"), chain[:1], freevars)
        chain.insert(0, outer)
    names = [n for n in freevars if not (n == "__class__" and classes)]
    binding = [ast.Assign([ast.Name(n, ast.Store())], ast.Constant(None)) for n in names]
    chain.insert(0, _wrap(_SCOPE, binding + chain[:1], freevars))

    qualname = _SCOPE
    for parent, child in zip(chain, chain[1:]):
        name = getattr(child, "name", "<lambda>")
        if isinstance(parent, ast.ClassDef):
            qualname += "." + name
        elif isinstance(parent.body[0], ast.Global):
            qualname = name
        else:
            qualname += ".<locals>." + name
    return chain[0], qualname


def _find(code, name, line):
    """The code object of that name and line, outermost first."""
    level = [code]
    while level:
        for candidate in level:
            if candidate.co_name == name and candidate.co_firstlineno == line:
                return candidate
        level = [c for parent in level for c in parent.co_consts if isinstance(c, types.CodeType)]
    return None


def _find_node(tree, code):
    """(the node of a code object inside of an instrumented tree, the nodes of the scopes around it)."""
    kind, found = gast.Lambda if code.co_name == "<lambda>" else gast.FunctionDef, []
    todo = [(child, [tree]) for child in gast.iter_child_nodes(tree)]
    while todo:
        node, around = todo.pop()
        if type(node) is kind and getattr(node, "name", code.co_name) == code.co_name and source.first_line(node) == code.co_firstlineno:
            found.append((node, around))
        if isinstance(node, (gast.FunctionDef, gast.AsyncFunctionDef, gast.Lambda, gast.ClassDef)):
            around = [*around, node]
        todo += [(child, around) for child in gast.iter_child_nodes(node)]
    if len(found) != 1:
        raise source.NoSource(f"{code.co_filename}:{code.co_firstlineno} holds {len(found)} of {code.co_name}")
    return found[0]


def _stub(scope):
    """A node of `ast` with what `_scope` asks of one of `gast`."""
    name = getattr(scope, "name", "_lambda")
    return ast.ClassDef(name=name) if isinstance(scope, gast.ClassDef) else ast.FunctionDef(name=name)


def _finished(code, old_prefix, new_prefix, extra_flags=0):
    """`code` with the run-time in place of its marker and with the user's qualified names, nested code too."""
    consts = []
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            const = _finished(const, old_prefix, new_prefix)
        elif isinstance(const, str):
            if const == _MARK:
                const = location.tls
            elif const.startswith(old_prefix + ".<locals>."):  # a class's __qualname__; on 3.10, a function's too
                const = new_prefix + const[len(old_prefix):]
        consts.append(const)
    changes = {"co_consts": tuple(consts)}
    if extra_flags:
        changes["co_flags"] = code.co_flags | extra_flags
    if hasattr(code, "co_qualname") and code.co_qualname.startswith(old_prefix):
        changes["co_qualname"] = new_prefix + code.co_qualname[len(old_prefix):]
    return keeps_line(code.replace(**changes))
