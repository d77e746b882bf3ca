"""Loops round a tape's block: the block, and what follows it, become a function of their own.

    for x, y in batches:                          def block(model, x, y):
        with tf.GradientTape() as tape:               with tf.GradientTape() as tape:
            loss = model.loss(x, y)          →            loss = model.loss(x, y)
        grads = tape.gradient(loss, vs)               grads = tape.gradient(loss, vs)
        optimizer.apply(grads, vs)                    optimizer.apply(grads, vs)
        print(loss)                                   return loss

                                                  for x, y in batches:
                                                      loss = block(model, x, y)
                                                      print(loss)

So a script's main loop is treated like a step that was written as a function. What is read there of names that the loop changes, or that are local to
the function, are arguments; what is bound there and may be read later, before it is bound again, is the result; the rest is local to the new
function. Arguments that the statements only append to are annotated (`filled_in`): the list itself need not be given. That is done only where no program can tell: where each argument is sure to be bound before, and each result afterwards, no function looks
at one of these names, or binds it, and control does not leave the statements but at their end. Else the loop stays as it is.
"""

import ast
import sys

from terra.transform.rewriting.blocks import FUNCTIONS, LOOPS, UPDATES, begins, helpers_of, is_block, is_step, is_tape, name_called, passes
from terra.transform.rewriting.names import always_leaves, bound_after, looks_at_names, names_of, parameters

__all__ = ["filled_in", "is_outlined", "outline"]

_NAME = "<block at line {}>"
_OF_TAPES = frozenset(["persistent", "watch_accessed_variables"])
_NOT_INSIDE = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, *FUNCTIONS, ast.ClassDef, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom,
               ast.NamedExpr, ast.AnnAssign)
_NOT_OPERATIONS = frozenset([
    "constant", "convert_to_tensor", "data", "io", "summary", "keras", "py_function", "numpy_function", "print", "config", "train", "saved_model", "distribute", "profiler", "function", "Variable"])
_ONLY_FILLING = frozenset(["append", "extend"])
_FILLED = "filled"  # the annotation of an argument that is only appended to
_FILLING = frozenset(["append", "appendleft", "extend", "insert", "add", "update", "setdefault"])
_CONTAINERS = frozenset(["list", "dict", "set", "deque", "OrderedDict", "Counter"])
# A call behind a block that is a statement of its own is part of the step (a metric's, say), unless it shows, writes or keeps something.
_OTHER = frozenset([
    "input", "next", "open", "append", "extend", "info", "debug", "warning", "error", "scalar", "image", "histogram", "flush", "numpy", "item", "float", "int", "bool", "str", "format",
    "time", "perf_counter", "sleep"])
_OTHERS = ("print", "write", "log", "save", "plot", "show", "set_", "on_")  # what their names begin with


def outline(tree, is_main):
    """Make functions of the blocks of tapes in a module's loops, in place.

    is_main: whether nobody else uses the module's own names, so that its own loops may be changed, too.
    """
    if any(map(looks_at_names, ast.walk(tree))):
        return
    declared, made, body, bound, helpers = names_of(tree.body).declared, [], [], set(), helpers_of(tree)
    for k, statement in enumerate(tree.body):
        n = len(made)
        if is_main and not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            _Outliner(tree, (), declared, made, helpers).walk([statement], bound, following=[(tree.body, k + 1)])
        for function, around in _functions(statement, ()):
            if not is_step(function, helpers):
                outliner = _Outliner(function, around, declared, made, helpers)
                outliner.walk(function.body, outliner.bound_before())
        body += [*made[n:], statement]
        bound = bound_after([statement], bound, passes)
    tree.body = body


def is_outlined(name):
    """Returns whether this is the name of a function that was made of a block."""
    return name.startswith(_NAME.partition("{")[0])


def filled_in(function):
    """Returns the positions of the arguments to which such a function only appends."""
    code = function.__code__
    return [k for k, name in enumerate(code.co_varnames[:code.co_argcount]) if name in function.__annotations__]


def _functions(node, around):
    """(function, the functions and classes around it) for the functions in a statement, but for those that TensorFlow traces."""
    if isinstance(node, FUNCTIONS):
        if not any("function" in ast.dump(decorator) for decorator in node.decorator_list):
            yield node, around
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        around = (*around, node)
    for child in ast.iter_child_nodes(node):
        yield from _functions(child, around)


class _Outliner:
    """Makes functions of the blocks in the loops of one scope, a module's or a function's: they are appended to `made`.

    declared: the names that some function of the module declares. helpers: those of its functions that give gradients, see `blocks`.
    """

    def __init__(self, scope, around, declared, made, helpers):
        self._helpers = helpers
        self._scope, self._around, self._declared, self._made = scope, around, declared, made
        self._is_module = isinstance(scope, ast.Module)
        self._own, self._outer = set(), set()
        if not self._is_module:
            names = names_of(scope.body)
            self._own = names.stores | names.deletes | parameters(scope)
        for function in around:
            if isinstance(function, FUNCTIONS):
                self._outer |= names_of(function.body).stores | parameters(function)
        self._outer -= self._own

    def bound_before(self):
        """The names that are sure to be bound when the function is called."""
        bound = parameters(self._scope)
        for function, inner in zip(self._around, (*self._around[1:], self._scope)):
            if isinstance(function, FUNCTIONS):
                before = []
                for statement in function.body:
                    if any(node is inner for node in ast.walk(statement)):
                        break
                    before.append(statement)
                bound |= (bound_after(before, parameters(function), passes) & self._outer)
        return bound

    def walk(self, statements, bound, loop=None, following=(), catching=()):
        """Look for blocks in a list of statements.

        bound: the names that are sure to be bound before. loop: the outermost one of the scope that they are in. following: what may run after them,
        as (statements, the first of those). catching: the same of what may run after an exception that some statement round them has caught.
        """
        k, before = 0, []  # what is bound before each of the statements
        while k < len(statements):
            node = statements[k]
            before.append(bound)
            if not begins(node, self._helpers):
                again = (statements, k if isinstance(node, LOOPS) else k + 1)
                self._look_inside(node, bound, loop, (again, *following), catching)
            elif loop is not None and not (is_block(node) and _has_options(node)):
                first = k
                while first and _computes(statements[first - 1]):
                    first -= 1
                region = statements[first:k + self._extent(statements[k:])]
                call = None if not (is_block(node) or _updates(region)) else self._function(region, k - first, before[first], loop, ((statements, first), *following), catching)
                if call is not None:
                    statements[first:first + len(region)] = [node := call]
                    k = first
                    del before[k + 1:]
                    bound = before[k]
            bound = bound_after([node], bound, passes)
            k += 1

    def _look_inside(self, node, bound, loop, following, catching):
        if isinstance(node, LOOPS):
            inside = bound - names_of([node]).deletes | names_of([node.target] if hasattr(node, "target") else []).stores
            self.walk(node.body, inside, loop or node, following, catching)
        elif isinstance(node, ast.If):
            self.walk(node.body, bound, loop, following, catching)
            self.walk(node.orelse, bound, loop, following, catching)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            self.walk(node.body, bound | _bound_by(node), loop, following, (*catching, *following))
        elif hasattr(node, "handlers"):
            behind = ((node.finalbody, 0), *following)
            goes_on = not all(always_leaves(handler.body) for handler in node.handlers)  # to what stands behind it
            caught = *[(handler.body, 0) for handler in node.handlers], (node.finalbody, 0), *following[0 if goes_on else 1:]
            self.walk(node.body, bound, loop, ((node.orelse, 0), *behind), (*catching, *caught))

    def _may_be_read(self, following):
        """The names that may be read in what may run, before it binds them."""
        found = set()
        for statements, first in following:
            bound_after(statements[first:], (), passes, found)
        return found

    def _extent(self, statements):
        """How many of the statements that begin with a block belong to the step; 0 if they cannot be a function."""
        tapes, n, bound = _bound_by(statements[0]), 0, set()
        for k, statement in enumerate(statements):
            if _leaves(statement) or any(isinstance(node, _NOT_INSIDE) for node in ast.walk(statement)):
                break
            names = names_of([statement])
            calls = [name_called(node) for node in ast.walk(statement) if isinstance(node, ast.Call)]
            if k == 0 or not tapes.isdisjoint(names.loads | names.deletes) or not UPDATES.isdisjoint(calls) or (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and not any(map(_is_other, calls)) and not bound.isdisjoint(names.loads)):
                n = k + 1
            bound |= names.stores
        return n

    def _function(self, region, at, bound, loop, following, catching):
        """Make a function of these statements, of which that at `at` is the block, or of the first of them, which stay in `region`: the statement
        that calls it; None if they cannot be one."""
        if len(region) <= at:
            return None
        names, read_first = names_of(region), set()
        after = bound_after(region, (), passes, read_first)
        changed = names_of([loop]).stores
        local = changed if self._is_module else self._own | self._outer
        bound_here = names.stores | names.deletes
        if not self._declared.isdisjoint((names.loads & local) | bound_here) or not names_of([*self._scope.body, *self._made]).captured.isdisjoint(bound_here):
            return None  # a function may look at it while the statements run, or bind it
        if any(isinstance(part, ast.ClassDef) for part in self._around) and any(_needs_class(node) for part in region for node in ast.walk(part)):
            return None
        (statements, first), *others = following
        read_after = self._may_be_read([(statements, first + len(region)), *others])
        results = names.stores & read_after
        if not self._is_module:  # what else reads a name of the function must not take it for a name outside of it
            elsewhere = names_of(self._scope.body, region)
            results |= names.stores & (elsewhere.loads | elsewhere.deletes) - elsewhere.stores - parameters(self._scope)
        arguments = (read_first & local) | (results - after)
        handled = {node.name for part in region for node in ast.walk(part) if isinstance(node, ast.ExceptHandler)}
        if not arguments <= bound or not names.captured.isdisjoint(arguments | names.stores):
            return None
        if not names.deletes <= names.stores or not (names.deletes | handled).isdisjoint(read_first | arguments | read_after):
            return None
        if not names.stores.isdisjoint(self._may_be_read(catching)):
            return None  # an exception may leave the statements half-way, with some names bound
        lasting = arguments - _empty_after(statements[:first]) - _cleared_in(statements)  # the others have nothing in them when a step begins
        if not results.isdisjoint(_bound_by(region[at])) or any(_takes_from(node, lasting - changed) for part in region for node in ast.walk(part)):
            return None  # a tape belongs to its step; what holds the data is looked through at each call
        filled = lasting - _looked_at(region)
        grows = next((k for k, part in enumerate(region) if _fills(part, lasting - filled)), None)
        if grows is not None:  # a list that grows would be looked through at each call
            del region[grows:]
            return self._function(region, at, bound, loop, following, catching)
        return self._write(region, at, sorted(arguments), sorted(results), filled)

    def _write(self, region, at, arguments, results, filled):
        block, last = region[at], region[-1]
        name = _NAME.format(block.lineno)
        body = [*region, ast.Return(_tuple([ast.Name(x, ast.Load()) for x in results], ast.Load()))] if results else region
        args = ast.arguments(posonlyargs=[], args=[ast.arg(x, ast.Constant(_FILLED) if x in filled else None) for x in arguments], vararg=None, kwonlyargs=[], kw_defaults=[], kwarg=None, defaults=[])
        function = ast.FunctionDef(name=name, args=args, body=body, decorator_list=[], returns=None, type_comment=None)
        if sys.version_info >= (3, 12):
            function.type_params = []
        ast.copy_location(function, block)
        function.end_lineno, function.end_col_offset = last.end_lineno, last.end_col_offset
        self._made.append(ast.fix_missing_locations(function))
        call = ast.Call(ast.Name(name, ast.Load()), [ast.Name(x, ast.Load()) for x in arguments], [])
        call = ast.Assign([_tuple([ast.Name(x, ast.Store()) for x in results], ast.Store())], call) if results else ast.Expr(call)
        return ast.fix_missing_locations(ast.copy_location(call, block.items[0].context_expr if is_block(block) else block))


def _computes(statement):
    """Returns whether a statement does nothing but call functions of TensorFlow's, and binds a name to the result: it may as well be part of the step
    that it stands before.

    Not one that fetches data, from an array, say: what it gets is better told from other tensors outside.
    """
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, (ast.Call, ast.BinOp)) or not all(isinstance(target, ast.Name) for target in statement.targets):
        return False
    parts = list(ast.walk(statement.value))
    calls = [node.func for node in parts if isinstance(node, ast.Call)]
    return bool(calls) and not any(isinstance(node, ast.Subscript) for node in parts) and all(map(_is_tensorflows, calls))


def _is_tensorflows(function):
    names = []
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    return isinstance(function, ast.Name) and function.id == "tf" and bool(names) and names[-1] not in _NOT_OPERATIONS


def _tuple(names, context):
    return names[0] if len(names) == 1 else ast.Tuple(names, context)


def _is_other(name):
    return name is None or name in _OTHER or name.startswith(_OTHERS)


def _bound_by(block):
    """The names that a `with` statement itself binds."""
    return set() if not isinstance(block, (ast.With, ast.AsyncWith)) else names_of([item.optional_vars for item in block.items if item.optional_vars is not None]).stores


def _has_options(block):
    """Returns whether a tape is given options of Terra's, which are those of its own steps."""
    return any(keyword.arg not in _OF_TAPES for item in block.items if is_tape(item.context_expr) for keyword in item.context_expr.keywords)


def _updates(statements):
    """Returns whether these statements update variables."""
    return any(isinstance(node, ast.Call) and getattr(node.func, "attr", None) in UPDATES for statement in statements for node in ast.walk(statement))


def _takes_from(node, names):
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in names


def _leaves(node):
    """Returns whether a `break` or `continue` in a statement is one of a loop around it."""
    if isinstance(node, (ast.Break, ast.Continue)):
        return True
    inside = node.orelse if isinstance(node, LOOPS) else ast.iter_child_nodes(node)
    return any(map(_leaves, inside))


def _fills(statement, names):
    """Returns whether a statement puts something into a container that one of these names stands for."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
            held = node.func.value
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            held = node.value
        else:
            continue
        if isinstance(held, ast.Name) and held.id in names:
            return True
    return False


def _looked_at(statements):
    """The names that these statements use for more than to append to what they stand for."""
    filled = set()  # the nodes of names that are used for that
    for statement in statements:
        for node in ast.walk(statement):
            match node:
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name() as name, attr=attr), args=[argument], keywords=[])) if (
                        attr in _ONLY_FILLING and not isinstance(argument, ast.Starred)):
                    filled.add(name)
    return {node.id for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Name) and node not in filled}


def _empty_after(statements):
    """The names that these statements, which come before a block each time, bind to new containers with nothing in them."""
    empty = set()
    for statement in statements:
        empty -= names_of([statement]).stores
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                empty |= _bound_to_empty(target, statement.value)
    return empty


def _cleared_in(statements):
    """The names of containers that are emptied each time these statements run."""
    found = set()
    for statement in statements:
        if passes(statement):
            found |= _cleared_in(statement.body)
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="clear"))):
                found.add(name)
    return found


def _bound_to_empty(target, value):
    if isinstance(target, ast.Name):
        return {target.id} if _is_empty(value) else set()
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)) and len(target.elts) == len(value.elts):
        return set().union(*map(_bound_to_empty, target.elts, value.elts))
    return set()


def _is_empty(value):
    if isinstance(value, (ast.List, ast.Dict)):
        return not (value.elts if isinstance(value, ast.List) else value.keys)
    name = name_called(value)
    return name == "defaultdict" or (name in _CONTAINERS and not value.args)


def _needs_class(node):
    """Returns whether an expression means something else outside of its class."""
    name = getattr(node, "id", None) or getattr(node, "attr", None)
    return name is not None and (name in ("super", "__class__") or (name.startswith("__") and not name.endswith("__")))
