"""The observed form of a function: its instrumented tree, with each operand shown to an observer before it is used.

The observer (``tls.observer``, see `terra.runtime.fast_forward.purity.observer`) gives back what it is shown, so this form does what the instrumented
one does, at the same executed locations. It runs a few times only, to find out whether the function does anything but compute:

    x = self.scale * x + b[0]       x = o.binary('Add', o.binary('Mult', o.owner(self, 'scale').scale, x), o.container(b)[0])

Names are not shown: locals hold what was shown when it was made, and the globals and free variables of a code object are known without running it.
But those are that the function sets as well, as `global` or `nonlocal` ones.
"""

import gast

from terra.transform.observing.assignments import Assignments
from terra.transform.observing.observed_match import MatchStatements
from terra.transform.observing.observed_texts import Texts
from terra.transform.observing.value_sources import Unobservable, key_of, name_of, refuse_calls, returned, starred, structure
from terra.transform.observing.questions import COMPARING, Questions
from terra.transform.rewriting.analysis import own_nodes
from terra.transform.rewriting.templates import expression, statements

__all__ = ["Observed"]

_REFUSED = (gast.Await, gast.AsyncFor, gast.AsyncWith)
_REFUSED_NAMES = frozenset(["TryStar", "TypeAlias", "TemplateStr", "Interpolation"])
_ITERATING = frozenset(["each", "each_lazily", "outermost"])  # the cursor's helpers for comprehensions


class Observed(Assignments, MatchStatements, Texts, gast.NodeTransformer):
    """Visits one instrumented tree; `prefix` begins the names that the instrumenter added, `tls` is the one for the run-time, `class_name` that of
    the class around it, `freevars` are those of its function. In the end, `shown` has the names that its functions declare `global`, or `nonlocal` of
    a function around the tree, and how: these are shown."""

    def __init__(self, prefix, tls, class_name=None, freevars=()):
        self._freevars = freevars
        self._prefix = prefix
        self.tls = tls
        self._class_name = (class_name or "").lstrip("_")
        self._questions = Questions(self)

    def observe(self, tree):
        """The tree of a FunctionDef or Lambda, changed in place."""
        self.shown = self._declared_names(tree)
        self._returns_in_finally = any(isinstance(x, gast.Return) for node in gast.walk(tree) if isinstance(node, gast.Try) for y in node.finalbody for x in gast.walk(y))
        if isinstance(tree, gast.Lambda):
            tree.body = self.visit(tree.body)
        else:
            tree.body = self._function_body(tree)
        return tree

    # --- helpers ---

    def _show(self, how, node, **more):
        extra = "".join(f", {name}" for name in more)
        return expression(f"tls.observer.{how}(it{extra})", node, tls=self.tls, it=node, **more)

    def is_own(self, node):
        """Is it the instrumenter's: one of its names, an attribute of one, or a call of that?"""
        if isinstance(node, gast.Call):
            node = node.func
        while isinstance(node, gast.Attribute):
            node = node.value
        return isinstance(node, gast.Name) and node.id.startswith(self._prefix)

    def _visit_list(self, nodes):
        result = []
        for node in nodes:
            new = self.visit(node)
            if isinstance(new, list):
                result.extend(new)
            else:
                result.append(new)
        return result

    def _shown(self, how, node):
        return self._show(how, self.visit(node))

    def visit(self, node):
        if isinstance(node, _REFUSED) or type(node).__name__ in _REFUSED_NAMES:
            raise Unobservable(f"line {getattr(node, 'lineno', '?')} has a statement of type {type(node).__name__}")
        return super().visit(node)

    def _defined(self, node):
        """A definition whose code is not observed: the observer is told when it is made."""
        return [gast.Expr(self._show("unobserved", gast.copy_location(gast.Constant(f"makes {node.name}, whose code cannot be observed", None), node))), node]

    visit_ClassDef = visit_AsyncFunctionDef = _defined

    # --- names and their parts ---

    def _declared_names(self, tree):
        """{name: whether it is global}, of the names that functions of the tree declare."""
        found = {name: True for node in gast.walk(tree) if isinstance(node, gast.Global) for name in node.names}
        found.update((name, False) for node in gast.walk(tree) if isinstance(node, gast.Nonlocal) for name in node.names if self.mangled(name) in self._freevars)
        for function in gast.walk(tree) if found else ():
            if isinstance(function, (gast.FunctionDef, gast.Lambda)):
                nodes = [*own_nodes(function), *gast.walk(function.args)]
                declared = {name for node in nodes if isinstance(node, (gast.Global, gast.Nonlocal)) for name in node.names}
                bound = {node.id for node in nodes if isinstance(node, gast.Name) and not isinstance(node.ctx, gast.Load)}
                bound.update(node.name for node in nodes if isinstance(node, gast.FunctionDef))
                if not found.keys().isdisjoint(bound - declared):
                    raise Unobservable(f"line {function.lineno} has a variable of a name that is declared global or nonlocal elsewhere in it")
        return found

    def variable(self, node):
        """(what of an object such a name stands for, an expression for the object), see `Questions`."""
        if self.shown[node.id]:
            return gast.Constant(self.mangled(node.id), None), expression("tls.observer.globals()", node, tls=self.tls)
        return gast.Constant("cell_contents", None), expression("(lambda: held).__closure__[0]", node, held=node.id)

    def visit_Name(self, node):
        if node.id not in self.shown:
            return node
        if not isinstance(node.ctx, gast.Load):
            raise Unobservable(f"line {node.lineno} sets {node.id}, which is not its own, in an unusual way")
        key, owner = self.variable(node)
        return self._show("named", node, owner=owner, name=key)

    def visit_Attribute(self, node):
        if self.is_own(node):
            return node
        how = "owner" if isinstance(node.ctx, gast.Load) else "assigned" if isinstance(node.ctx, gast.Store) else "removed"
        node.value = self._show(how, self.visit(node.value), name=self.attribute(node))
        return node

    def attribute(self, node):
        """The name of an attribute, as a constant."""
        return gast.Constant(self.mangled(node.attr), None)

    def mangled(self, name):
        private = self._class_name and name.startswith("__") and not name.endswith("__")
        return f"_{self._class_name}{name}" if private else name

    def visit_Subscript(self, node):
        if not isinstance(node.ctx, gast.Load):
            return self._stored(node)
        key = key_of(node.slice)
        node.value = self._shown("mapping", node.value) if key is None else self._show("subscript", self.visit(node.value), key=key)
        is_slice = isinstance(node.slice, gast.Slice)
        node.slice = self._index(node.slice)
        return self._show("result" if is_slice else "item", node)

    def _stored(self, node, value=None):
        """An item or slice that is deleted, or set, to what the expression `value` gives if that can be said."""
        more = {} if isinstance(node.ctx, gast.Del) else {"sliced": gast.Constant(isinstance(node.slice, gast.Slice), None)}
        if value is not None:
            more["value"] = value
            more["key"] = key_of(node.slice)
        more = {name: part for name, part in more.items() if part is not None}
        node.value = self._show("stored", self.visit(node.value), **more)
        node.slice = self._index(node.slice)
        return node

    def _index(self, node):
        if isinstance(node, gast.Slice):
            for field in ("lower", "upper", "step"):
                part = getattr(node, field)
                if part is not None:
                    setattr(node, field, self._shown("bound", part))
            return node
        if isinstance(node, gast.Tuple):
            node.elts = [self._index(x) for x in node.elts]
            return node
        if isinstance(node, gast.Starred):
            node.value = self._show("iterated", self.visit(node.value))
            return node
        return self.visit(node) if isinstance(node, gast.Constant) else self._shown("index", node)

    def visit_Starred(self, node):
        node.value = self._shown("iterated", node.value) if isinstance(node.ctx, gast.Load) else self.visit(node.value)
        return node

    # --- operators and tests ---

    def visit_BinOp(self, node):
        counted = self._questions.counted(node)
        result = expression(
            "tls.observer.binary(name, left, right)", node, tls=self.tls, name=name_of(node.op), left=self.visit(node.left), right=self.visit(node.right))
        return result if counted is None else expression("(counted or [result])[0]", node, counted=counted, result=result)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, gast.Not):
            node.operand = self._truth(node.operand)
            return node
        return expression("tls.observer.unary(name, it)", node, tls=self.tls, name=name_of(node.op), it=self.visit(node.operand))

    def visit_BoolOp(self, node):
        *tested, last = node.values
        node.values = [self._shown("truth", x) for x in tested] + [self.visit(last)]  # (not only whether they are true, but what they are)
        return node

    def visit_Compare(self, node):
        return self._answered(self._questions.about(node), self._compared(node))

    def _compared(self, node):
        if all(isinstance(op, (gast.Is, gast.IsNot)) for op in node.ops):
            if any(isinstance(x, gast.Constant) and (x.value is None or x.value is ... or isinstance(x.value, bool)) for x in (node.left, *node.comparators)):
                return self.generic_visit(node)
            if len(node.ops) == 1:
                found = expression("tls.observer.same(left, right)", node, tls=self.tls, left=self.visit(node.left), right=self.visit(node.comparators[0]))
                return found if isinstance(node.ops[0], gast.Is) else gast.copy_location(gast.UnaryOp(gast.Not(), found), node)
            node.left, node.comparators = self._shown("identified", node.left), [self._shown("identified", x) for x in node.comparators]
            return node
        if len(node.ops) == 1 and isinstance(node.ops[0], COMPARING):
            return expression(
                "tls.observer.comparison(name, left, right)", node, tls=self.tls, name=name_of(node.ops[0]), left=self.visit(node.left), right=self.visit(node.comparators[0]))
        if len(node.ops) == 1 and isinstance(node.ops[0], (gast.In, gast.NotIn)):
            found = expression("tls.observer.contains(left, right)", node, tls=self.tls, left=self.visit(node.left), right=self.visit(node.comparators[0]))
            return found if isinstance(node.ops[0], gast.In) else gast.copy_location(gast.UnaryOp(gast.Not(), found), node)
        identity = any(isinstance(op, (gast.Is, gast.IsNot)) for op in node.ops)
        node.left = self._shown("compared", node.left)
        node.comparators = [
            self._shown("searched" if isinstance(op, (gast.In, gast.NotIn)) else "compared", x) for op, x in zip(node.ops, node.comparators)]
        if identity:
            node.left, node.comparators = self._show("identified", node.left), [self._show("identified", x) for x in node.comparators]
        return self._show("result", node)

    def _answered(self, question, node):
        return node if question is None else self._show("answer", gast.copy_location(gast.BoolOp(gast.Or(), [question, node]), node))

    def _truth(self, node):
        """A shown test."""
        question = self._questions.about(node)
        if question is None and isinstance(node, gast.BoolOp):  # of which it does not matter what it gives
            node.values = [self._truth(x) for x in node.values]
            return node
        return self._answered(question, self._shown("tested", node))

    def _visit_test(self, node):
        test = self._truth(node.test)
        node.test = gast.Constant(None, None)
        self.generic_visit(node)
        node.test = test
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _visit_test

    # --- what is made anew ---

    def _visit_display(self, node):
        if isinstance(getattr(node, "ctx", None), (gast.Store, gast.Del)):
            return self.generic_visit(node)
        if isinstance(node, gast.Set):
            elements = self._visit_list(node.elts)
            for x in elements:
                if isinstance(x, gast.Starred):
                    x.value = self._show("elements", x.value)
            node.elts = [x if isinstance(x, gast.Starred) else self._show("operand", x) for x in elements]
        else:
            self.generic_visit(node)
        return self._show("fresh", node)

    visit_List = visit_Set = _visit_display

    def visit_Dict(self, node):
        values = []
        for key, value in zip(node.keys, node.values):
            values.append(self.visit(value) if key is not None else self._shown("items", value))
        node.keys = [key and self._shown("operand", key) for key in node.keys]
        node.values = values
        return self._show("fresh", node)

    def _visit_comprehension(self, node):
        for generator in node.generators:
            generator.target = self.visit(generator.target)
            generator.iter = self._iterable(generator.iter, generator.target)
            generator.ifs = [self.visit(c) if self.is_own(c) else self._shown("tested", c) for c in generator.ifs]
        if isinstance(node, gast.DictComp):
            node.key, node.value = self._shown("operand", node.key), self.visit(node.value)
        else:
            node.elt = self._shown("operand", node.elt) if isinstance(node, gast.SetComp) else self.visit(node.elt)
        return self._show("fresh", node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def visit_Lambda(self, node):
        self._visit_defaults(node.args)
        node.body = self.visit(node.body)
        return self._show("fresh", node)

    def visit_FunctionDef(self, node):
        if node.name in self.shown:
            raise Unobservable(f"line {node.lineno} gives a function a name that is not its own")
        for annotation in (node.returns, *[arg.annotation for arg in gast.walk(node.args) if isinstance(arg, gast.Name)]):
            refuse_calls(annotation)
        self._visit_defaults(node.args)
        node.body = self._function_body(node)
        if not node.decorator_list:
            return [node, *self._born([node.name])]
        # The first thing that decorates it shows it.
        fresh = expression("tls.observer.fresh", node.decorator_list[-1], tls=self.tls)
        node.decorator_list = [*[self._shown("builtin", decorator) for decorator in node.decorator_list], fresh]
        return node

    def _function_body(self, node):
        body = self._visit_list(node.body)
        return body if node.args.kwarg is None else [*self._born([node.args.kwarg.id]), *body]

    def _born(self, names):
        """Statements that show containers which Python has just made."""
        return [x for name in names for x in statements("tls.observer.fresh(name)", None, tls=self.tls, name=name)]

    def _visit_defaults(self, args):
        args.defaults = self._visit_list(args.defaults)
        args.kw_defaults = [d and self.visit(d) for d in args.kw_defaults]

    def visit_YieldFrom(self, node):
        if self.is_own(node.value):
            node.value.args = [self._shown("iterated", x) for x in node.value.args]
        else:
            node.value = self._shown("iterated", node.value)
        return node

    # --- calls ---

    def visit_Call(self, node):
        if not self.is_own(node):
            if getattr(node.func, "id", None) == "super" and not node.args and not node.keywords:
                return node  # needs this very frame
            node.func = self._show("builtin", self.visit(node.func))
            return self._visit_arguments(node)
        method = node.func.attr if isinstance(node.func, gast.Attribute) else None
        if method == "visible":
            raise Unobservable("it asks for its local names")
        if method == "leave" and node.args and isinstance(node.args[0], gast.Call):
            call = node.args[0]
            entering = call.func
            call.func = expression(
                "tls.observer.enter(cursor, call_id, callee)", entering, tls=self.tls, cursor=entering.func.value, call_id=entering.args[0],
                callee=self.visit(entering.args[1]))
            self._visit_arguments(call)
            return node
        node.args = [x if self.is_own(x) and not isinstance(x, gast.Call) else self.visit(x) for x in node.args]
        if method in _ITERATING:
            node.args[-1] = self._show("looped", node.args[-1])
        elif method == "keep":
            node.args[-1] = self._show("truth", node.args[-1])
        return node

    def _visit_arguments(self, node):
        node.args = self._visit_list(node.args)
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value) if keyword.arg is not None else self._shown("items", keyword.value)
        return node

    # --- statements ---

    def visit_Return(self, node):
        parts = returned(node.value)
        self.generic_visit(node)
        converted = {}
        for place, call in parts.items() if not self._returns_in_finally else ():
            call = self._call_within(call)
            callee = call.func.args[-1] if isinstance(call, gast.Call) and isinstance(call.func, gast.Call) and call.func.args else None
            if getattr(callee, "id", None) in ("int", "bool"):
                converted[place] = gast.Constant(place, None)
                call.func = self._show("returning", call.func, place=converted[place])
        if converted:
            node.value = self._show("returned", node.value, places=gast.Tuple([*converted.values()], gast.Load()))
        return node

    def _call_within(self, node):
        """The call itself, of what the instrumenter has made of one."""
        is_left = isinstance(node, gast.Call) and self.is_own(node) and getattr(node.func, "attr", None) == "leave" and isinstance(node.args[0], gast.Call)
        return node.args[0] if is_left else node

    def visit_Raise(self, node):
        if node.exc is not None:
            node.exc = self._shown("raised", node.exc)
        return node

    def visit_For(self, node):
        node.iter = self._iterable(node.iter, node.target)
        rest = self._born(starred([node.target]))
        node.target = self.visit(node.target)
        node.body = [*rest, *self._visit_list(node.body)]
        node.orelse = self._visit_list(node.orelse)
        return node

    def _iterable(self, node, target):
        shape = structure(target)
        if isinstance(node, gast.Call) and self.is_own(node) and getattr(node.func, "attr", None) != "leave":
            if node.func.attr == "outermost":
                shape = structure(target.elts[1])  # the first one is the instrumenter's
            if shape is not None:  # what the items are unpacked into is told to the innermost iterable
                node.args[-1] = self._show("unpacking", self.visit(node.args[-1]), shape=shape)
                return node
            return self.visit(node)
        node = self.visit(node)
        return self._show("looped", node) if shape is None else self._show("unpacking", node, shape=shape)

    def visit_With(self, node):
        self._unpack_first(node)
        for item in node.items:
            item.context_expr = self._shown("context", item.context_expr)
        node.body = self._visit_list(node.body)
        return node
