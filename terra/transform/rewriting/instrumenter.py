"""Instruments the tree of one function: call sites, loops, handlers, suspensions.

What a plain function becomes (``t`` stands for ``_terra_cursor``, the current thread's cursor, kept in a local variable
because fetching it costs 40 ns):

    def f(x, n):                          def f(x, n):
                                              t = _terra_tls.cursor
                                              here = t.current
                                              try:
        for i in seq(n):                          loop = t.current.loop(5)
                                                  for i in t.leave(t.enter(16, seq)(n), 16):
                                                      t.current = loop = loop.next or loop.grow()
            x = op(x)                                 x = t.leave(t.enter(17, op)(x), 17)
                                                  t.current = loop.parent
        return x                                  return x
                                              finally:
                                                  t.current = here

* Loops need no try of their own: what leaves a loop by an exception ends up at a handler head or at the end of the
  function, and both put the location right. (CPython allows 20 nested blocks; a try per loop would halve that.)
* A generator or coroutine keeps an `Activation` instead, which takes its ids away while it is suspended, and finds its
  loops by id: its location may have moved on top of another resumer's in the meantime.
* Lambdas, comprehensions and class bodies have no statements or no locals to spare: they fetch the cursor from
  ``_terra_tls`` at each use.
* ``super()``, ``locals()``, ``isinstance(...)`` and the like issue no operation and are left alone.

Annotations are never touched (they may be turned into text), nor are patterns.
"""

import builtins

import gast

from terra.transform.rewriting.analysis import Scope, bound_names, suspends
from terra.transform.rewriting.comprehensions import Comprehensions
from terra.transform.rewriting.templates import expression, head_of, statements

# Builtins that look at the caller's frame, or that cannot lead to an operation, if nothing shadows the name.
UNTOUCHED_BUILTINS = frozenset(
    "super eval exec globals __import__ breakpoint isinstance issubclass callable type id range enumerate zip slice len "
    "object staticmethod classmethod property hasattr getattr setattr delattr compile open input chr ord".split()
)
SETS_TRACE = "set_trace"  # of pdb and its kin: a debugger stops at what its caller does next, which is not to be a function of ours
_FRAME_NAMES = frozenset(("locals", "vars", "dir"))  # their result would show the names that we added

class Instrumenter(Comprehensions, gast.NodeTransformer):
    """Visits one function. ``register(kind, lineno, function, [first id in a call's arguments])`` gives ids; `is_shadowed(name)` says whether a builtin's
    name means something else where the function was defined."""

    def __init__(self, register, is_shadowed, qualname):
        self._register = register
        self._is_shadowed = is_shadowed
        self._qualname = qualname
        self.scopes = []
        self.count = 0  # ids given so far; zero means that there is nothing to instrument
        self._ids = []
        self.changed = False

    def instrument(self, tree):
        """Instruments a FunctionDef, AsyncFunctionDef or Lambda in place."""
        self.begin(tree)
        if isinstance(tree, gast.Lambda):
            return self._lambda_body(tree, self._qualname)
        return self._function_body(tree, self._qualname)

    def begin(self, tree):
        """Chooses names that `tree` does not use."""
        bound = bound_names(tree)
        self._bound = bound
        self.prefix = "_terra_"
        while any(name.startswith(self.prefix) for name in bound):
            self.prefix += "_"
        self.tls = self.prefix + "tls"
        self._cursor = self.prefix + "cursor"
        return tree

    # --- helpers ---

    @property
    def scope(self):
        return self.scopes[-1]

    def _new_id(self, kind, node, *first_argument):
        self.count += 1
        new = self._register(kind, node.lineno, self.scope.name, *first_argument)
        self._ids.append(new)
        return new

    def _own_cursor(self):
        """Source of the expression for the cursor in this scope."""
        if self.scope.kind == "function":
            self.scope.used = True
            return self._cursor
        if self.scope.kind == "generator":
            self.scope.used = True
            return self.scope.activation + ".cursor"
        return self.tls + ".cursor"

    def _temporary(self, stem):
        self.scope.temporaries += 1
        return f"{self.prefix}{stem}{self.scope.temporaries}"

    def _visit_list(self, nodes):
        result = []
        for node in nodes:
            new = self.visit(node)
            if isinstance(new, list):
                result.extend(new)
            elif new is not None:
                result.append(new)
        return result

    def _has_statements(self):
        return self.scope.kind in ("function", "generator")

    # --- functions, lambdas, classes ---

    def _function_body(self, node, name):
        activation = self.prefix + "self" if suspends(node) else None
        scope = Scope("generator" if activation else "function", name, activation)
        self.scopes.append(scope)
        body = self._visit_list(node.body)
        self.scopes.pop()
        if scope.used:
            docstring = []
            if (isinstance(body[0], gast.Expr) and isinstance(body[0].value, gast.Constant)
                    and isinstance(body[0].value.value, str)):
                docstring = body[:1]
                body = body[1:] or statements("pass", at=docstring[0])
            first = head_of(body[0]) if body[0].lineno > 0 else head_of(node)
            if activation:
                prologue = statements("own = tls.activation()", first, own=activation, tls=self.tls)
                epilogue = statements("own.finish()", None, own=activation)
            else:
                here = self.prefix + "here"
                prologue = statements("cursor = tls.cursor; here = cursor.current", first,
                                      cursor=self._cursor, tls=self.tls, here=here)
                epilogue = statements("cursor.current = here", None, cursor=self._cursor, here=here)
            frame = statements("try: pass\nfinally: pass", None)[0]
            frame.body, frame.finalbody = body, epilogue
            body = docstring + prologue + [frame]
        node.body = body
        return node

    def visit_FunctionDef(self, node):
        # Decorators and defaults belong to the scope around it.
        node.decorator_list = self._visit_list(node.decorator_list)
        self._visit_defaults(node.args)
        return self._function_body(node, f"{self.scope.name}.{node.name}")

    visit_AsyncFunctionDef = visit_FunctionDef

    def _visit_defaults(self, args):
        args.defaults = self._visit_list(args.defaults)
        args.kw_defaults = [d and self.visit(d) for d in args.kw_defaults]

    def _lambda_body(self, node, name):
        if not suspends(node):  # a lambda with a yield in it is left alone
            self.scopes.append(Scope("expression", name))
            node.body = self.visit(node.body)
            self.scopes.pop()
        return node

    def visit_Lambda(self, node):
        self._visit_defaults(node.args)
        return self._lambda_body(node, f"{self.scope.name}.<lambda>")

    def visit_ClassDef(self, node):
        node.decorator_list = self._visit_list(node.decorator_list)
        node.bases = self._visit_list(node.bases)
        node.keywords = self._visit_list(node.keywords)
        self.scopes.append(Scope("class", f"{self.scope.name}.{node.name}", self.scope.activation))
        node.body = self._visit_list(node.body)
        self.scopes.pop()
        return node

    # --- calls ---

    def _untouched(self, node):
        name = getattr(node.func, "id", None)
        if name == "super" and not node.args and not node.keywords:
            return True  # needs this very frame; and shadowed or not, it can do without a location
        if name == SETS_TRACE or getattr(node.func, "attr", None) == SETS_TRACE:
            return True
        return name in UNTOUCHED_BUILTINS and not self._shadowed(name)

    def _shadowed(self, name):
        return name in self._bound or self._is_shadowed(name) or not hasattr(builtins, name)

    def visit_Call(self, node):
        name = getattr(node.func, "id", None)
        if name in _FRAME_NAMES and not node.args and not node.keywords and not self._shadowed(name):
            self.changed = True
            return expression("tls.visible(call)", node, tls=self.tls, call=node)
        before = len(self._ids)
        node.args = self._visit_list(node.args)
        node.keywords = self._visit_list(node.keywords)
        if name == "id" and len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], gast.Starred) and not self._shadowed(name):
            node.args = [self._itself(node.args[0])]
            return node
        if self._untouched(node):
            node.func = self.visit(node.func)
            return node
        call_id = self._new_id("call", node, *self._ids[before:before + 1])
        cursor = self._own_cursor()
        callee = self.visit(node.func)
        node.func = expression(f"{cursor}.enter(call_id, callee)", callee, call_id=call_id, callee=callee)
        return expression(f"{cursor}.leave(call, call_id)", node, call=node, call_id=call_id)

    def visit_Compare(self, node):
        node = self.generic_visit(node)
        parts = [node.left, *node.comparators]
        if all(isinstance(op, (gast.Is, gast.IsNot)) for op in node.ops) and not any(isinstance(x, gast.Constant) for x in parts):
            node.left, *node.comparators = map(self._itself, parts)
        return node

    def _itself(self, node):
        """The expression for what the program takes an object for."""
        self.changed = True
        return expression("tls.itself(it)", node, tls=self.tls, it=node)

    # --- loops ---

    def _visit_loop(self, node, is_async=False):
        if not self._has_statements():
            return self.generic_visit(node)
        scope = self.scope
        head = head_of(node)
        if hasattr(node, "iter"):
            node.target = self.visit(node.target)
            node.iter = self.visit(node.iter)
        loop_id = self._new_id("loop", node)
        if isinstance(node, gast.While):  # the test belongs to the loop: the first one at counter 0
            node.test = self.visit(node.test)
        scope.used = True
        scope.loops.append((loop_id, is_async))
        body = self._visit_list(node.body)
        scope.loops.pop()
        if scope.kind == "generator":
            own = scope.activation
            before = statements("own.begin_loop(loop)", head, own=own, loop=loop_id)
            if not isinstance(node, gast.While):
                before = []  # iterate() begins it: the iterable belongs to the outside
            first = statements("own.iterate(loop)", head, own=own, loop=loop_id)
            after = "own.end_loop(loop)"
            holes = dict(own=own, loop=loop_id)
            if is_async:
                # The head of an `async for` awaits, where no code of ours runs: it is evaluated as if suspended.
                before = statements("own.suspend()", head, own=own)
                body = body + statements("own.suspend()", None, own=own)
        else:
            loop = self._temporary("loop")
            holes = dict(cursor=self._cursor, loop=loop)
            source = "loop = cursor.current.loop(loop_id)"
            if isinstance(node, gast.While):
                source = "cursor.current = " + source
            before = statements(source, head, loop_id=loop_id, **holes)
            first = statements("cursor.current = loop = loop.next or loop.grow()", head, **holes)
            after = "cursor.current = loop.parent"
        node.body = first + body
        orelse = self._visit_list(node.orelse)
        if orelse:
            node.orelse = statements(after, None, **holes) + orelse
        return before + [node] + statements(after, None, **holes)

    visit_For = visit_While = _visit_loop

    def visit_AsyncFor(self, node):
        return self._visit_loop(node, is_async=True)

    def visit_Continue(self, node):
        if self._has_statements() and self.scope.loops and self.scope.loops[-1][1]:
            return statements("own.suspend()", None, own=self.scope.activation) + [node]
        return node

    # --- where exceptions land ---

    def _with_reset(self, body, at, saved):
        """`body`, which an exception may have jumped to, with the location put right first."""
        if self.scope.kind == "generator":
            loop_id = self.scope.loops[-1][0] if self.scope.loops else None
            return statements("own.reset(loop)", at, own=self.scope.activation, loop=loop_id) + body
        return statements("cursor.current = saved", at, cursor=self._cursor, saved=saved) + body

    def _save(self, stem):
        """Statements that note the location ahead of a try or with, and the name they note it under."""
        if self.scope.kind == "generator":
            return [], None  # an Activation knows the way by itself
        saved = self._temporary(stem)
        return statements("saved = cursor.current", None, cursor=self._cursor, saved=saved), saved

    def visit_Try(self, node):
        count = self.count
        last = node.finalbody[-1] if node.finalbody else None
        self.generic_visit(node)
        if last is not None and node.finalbody[-1].lineno < 0:  # what we have added behind a loop, say: the frame is left there
            for part in gast.walk(node.finalbody[-1]):
                if "lineno" in part._attributes:
                    part.__dict__.update(head_of(last))
        touched = self.count != count or (self.scope.kind == "generator")
        if not touched or not self._has_statements():
            return node
        self.scope.used = True
        before, saved = self._save("try")
        for handler in node.handlers:
            handler.body = self._with_reset(handler.body, None, saved)
        if node.finalbody:
            node.finalbody = self._with_reset(node.finalbody, None, saved)
        return before + [node]

    visit_TryStar = visit_Try

    def visit_With(self, node):
        # A context manager may swallow an exception: execution then goes on behind the block.
        count = self.count
        self.generic_visit(node)
        if self.count == count or not self._has_statements():
            return node
        self.scope.used = True
        before, saved = self._save("with")
        return before + [node] + self._with_reset([], None, saved)

    def visit_AsyncWith(self, node):
        self.generic_visit(node)
        if not self._has_statements():
            return node
        self.changed = self.scope.used = True
        own = self.scope.activation
        hide = statements("own.suspend()", None, own=own)
        show = statements("own.wake()", None, own=own)
        node.body = show + node.body + statements("own.suspend()", None, own=own)
        return hide + [node] + self._with_reset([], None, None)

    # --- suspensions ---

    def _visit_suspension(self, node):
        if isinstance(node.value, gast.AST):
            node.value = self.visit(node.value)
        own = self.scope.activation
        if own is None:  # an asynchronous generator expression: runs inside its consumer
            return node
        self.changed = True
        for scope in reversed(self.scopes):
            if scope.kind == "generator":
                scope.used = True
                break
        value = node.value
        if value is None:
            node.value = expression("own.suspend()", node, own=own)
        else:
            node.value = expression("own.suspend(value)", value, own=own, value=value)
        return expression("own.resume(suspension)", node, own=own, suspension=node)

    visit_Yield = visit_YieldFrom = visit_Await = _visit_suspension

    # --- what is left as it is ---

    def visit_AnnAssign(self, node):
        node.target = self.visit(node.target)
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_match_case(self, node):
        if node.guard is not None:
            node.guard = self.visit(node.guard)
        node.body = self._visit_list(node.body)
        return node

    def visit_TypeAlias(self, node):
        return node
