"""Which names a piece of a module's syntax tree reads and binds, and which are sure to be bound by then."""

import ast

__all__ = ["TRIES", "Names", "always_leaves", "bound_after", "looks_at_names", "names_of", "parameters"]

TRIES = (ast.Try, ast.TryStar) if hasattr(ast, "TryStar") else (ast.Try,)
_BINDING = (ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_LOOK_AT_NAMES = frozenset(["globals", "locals", "eval", "exec"])
_LOOK_AT_FRAMES = frozenset(["_getframe", "currentframe", "f_locals", "f_globals", "modules"])  # (sys.modules["__main__"] has a script's names)
_CONSUMERS = frozenset(["sum", "list", "tuple", "dict", "set", "sorted", "max", "min", "any", "all", "join", "apply_gradients", "apply", "add_n", "extend"])


class Names(ast.NodeVisitor):
    """The names in the statements and expressions that are visited, as far as they are those of the scope around them."""

    def __init__(self, skipped=()):
        self.loads, self.stores, self.deletes = set(), set(), set()
        self.captured = set()  # read, or bound, by functions that are made here, and may run later
        self.declared = set()  # global, or nonlocal, here or in a function that is made here
        self._skipped = skipped  # statements that do not count

    def visit(self, node):
        if node not in self._skipped:
            super().visit(node)

    def visit_Name(self, node):
        {ast.Load: self.loads, ast.Store: self.stores, ast.Del: self.deletes}[type(node.ctx)].add(node.id)

    def visit_AugAssign(self, node):
        if isinstance(node.target, ast.Name):
            self.loads.add(node.target.id)
        self.generic_visit(node)

    def _declare(self, node):
        self.declared.update(node.names)

    visit_Global = visit_Nonlocal = _declare

    def _import(self, node):
        self.stores.update((alias.asname or alias.name).split(".")[0] for alias in node.names)

    visit_Import = visit_ImportFrom = _import

    def _capture(self, node):
        """Any other node with a name: handlers of exceptions, patterns."""
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if name is not None:
            self.stores.add(name)
        self.generic_visit(node)

    visit_ExceptHandler = visit_MatchAs = visit_MatchStar = visit_MatchMapping = _capture

    # -- scopes inside ---------------------------------------------------------------------------------------------------------

    def _function(self, node):
        args = node.args
        for part in (*getattr(node, "decorator_list", ()), *args.defaults, *filter(None, args.kw_defaults), getattr(node, "returns", None)):
            if part is not None:
                self.visit(part)
        for arg in _arguments(args):
            if arg.annotation is not None:
                self.visit(arg.annotation)
        inner = names_of(node.body if isinstance(node.body, list) else [node.body], self._skipped)
        self._inner(inner, (inner.stores | inner.deletes | parameters(node)) - inner.declared)
        if not isinstance(node, ast.Lambda):
            self.stores.add(node.name)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function

    def _inner(self, inner, bound):
        free = (inner.loads | inner.captured | inner.declared) - bound
        self.captured |= free
        self.loads |= free
        self.declared |= inner.declared

    def visit_ClassDef(self, node):
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self._inner(names_of(node.body, self._skipped), set())  # (what a class binds, its functions do not see)
        self.stores.add(node.name)

    def _comprehension(self, node, lazy=False):
        first, *_ = node.generators
        self.visit(first.iter)
        inner = Names(self._skipped)
        for k, generator in enumerate(node.generators):
            if k:
                inner.visit(generator.iter)
            inner.visit(generator.target)
            for condition in generator.ifs:
                inner.visit(condition)
        for part in ("elt", "key", "value"):
            if hasattr(node, part):
                inner.visit(getattr(node, part))
        walrus = {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        free = (inner.loads | inner.captured) - (inner.stores - walrus)
        self.loads |= free
        self.stores |= walrus
        self.captured |= free if lazy else inner.captured - (inner.stores - walrus)
        self.declared |= inner.declared

    visit_ListComp = visit_SetComp = visit_DictComp = _comprehension

    def visit_GeneratorExp(self, node):
        self._comprehension(node, True)

    def visit_Call(self, node):
        """A generator that is given to one of these has run when the call returns."""
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        self.visit(node.func)
        for arg in node.args:
            if isinstance(arg, ast.GeneratorExp) and name in _CONSUMERS:
                self._comprehension(arg)
            else:
                self.visit(arg)
        for keyword in node.keywords:
            self.visit(keyword)


def _arguments(args):
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]


def parameters(function):
    return {arg.arg for arg in _arguments(function.args)}


def names_of(nodes, skipped=()):
    """The `Names` of these nodes, without those of the `skipped` ones."""
    names = Names(skipped)
    for node in nodes:
        names.visit(node)
    return names


def bound_after(statements, bound, passes, unbound=None):
    """The names that are sure to be bound after these statements, if those in `bound` are before; names that may be read before they are sure to be
    go to the set `unbound`.

    passes: whether what comes after a given `with` statement comes after all of its body.
    """
    bound = set(bound)
    unbound = set() if unbound is None else unbound

    def reads(node, more=()):
        names = names_of([] if node is None else [node])
        unbound.update((names.loads | names.deletes) - bound - set(more))
        return names

    def inside(statements, more=(), less=()):
        return bound_after(statements, (bound | set(more)) - set(less), passes, unbound)

    for node in statements:
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                reads(item.context_expr)
                if item.optional_vars is not None:
                    bound |= reads(item.optional_vars).stores
            after = inside(node.body)
            bound = after if passes(node) else bound & after
        elif isinstance(node, ast.If):
            reads(node.test)
            bound = _after_all([(node.body, inside(node.body)), (node.orelse, inside(node.orelse))])
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            reads(node.iter)
            targets = reads(node.target).stores
            gone = names_of([node]).deletes
            bound = inside(node.body, targets, gone) & inside(node.orelse, less=gone) & bound
        elif isinstance(node, ast.While):
            reads(node.test)
            gone = names_of([node]).deletes
            bound = inside(node.body, less=gone) & inside(node.orelse, less=gone) & bound
        elif isinstance(node, ast.Match):
            reads(node.subject)
            ends = [([], bound)]
            for case in node.cases:
                captures = reads(case.pattern).stores
                reads(case.guard, captures)
                ends.append((case.body, inside(case.body, captures)))
            bound = _after_all(ends)
        elif isinstance(node, TRIES):
            deleted = names_of(node.body).deletes
            ends = [(node.body + node.orelse, inside(node.body + node.orelse))]
            for handler in node.handlers:
                reads(handler.type)
                name = {handler.name} - {None}
                ends.append((handler.body, inside(handler.body, name, deleted - name) - name))
            inside(node.finalbody, less=names_of([node]).deletes)
            bound = bound_after(node.finalbody, _after_all(ends), passes)
        else:
            names = reads(node)
            if isinstance(node, _BINDING):
                bound |= names.stores
            bound -= names.deletes
    return bound


def _after_all(ends):
    """Returns the names that are bound behind statements of which one list ran. ends: each list, and what is bound at its end, which those that leave
    never reach."""
    reached = [bound for statements, bound in ends if not always_leaves(statements)]
    return set.intersection(*(reached or [bound for _, bound in ends]))


def always_leaves(statements):
    """Returns whether control never reaches the end of these statements."""
    return any(isinstance(node, _LEAVING) for node in statements)


def looks_at_names(node):
    """Returns whether some code may look at a scope's names in a way that is not seen in the source."""
    if isinstance(node, ast.Name):
        return node.id in _LOOK_AT_NAMES
    if isinstance(node, ast.Attribute):
        return node.attr in _LOOK_AT_FRAMES
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return any(alias.name in ("__main__", "builtins", *_LOOK_AT_FRAMES) for alias in node.names)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("vars", "dir") and not node.args
