"""The idea of Terra in a few hundred lines of NumPy: trace, merge, assign cases, then run the skeleton and the graph at the same time.

    python docs/terra_from_scratch.py

Everything here is a small version of something in the package, and is named like it. What is left out: gradients, loops that are rolled, shapes, skipping of
known code, errors of kernels. Nothing here is used by the package.

    eager execution     an operation computes when Python comes to it
    trace               the list of operations of one step, each with its location: the lines of the calls that led to it
    TraceGraph          all traces merged: a directed graph without circles, with a fork wherever two traces part
    graph function      what is generated of it: a list of operations in which a fork is a Switch-Case, whose index Python sends
    skeleton            Python's own part of a step: it runs the program, but operations only check that they are the expected ones
    fallback            a step that leaves the graph goes on eagerly, with what it has done so far made again
"""

import queue
import sys
import threading

import numpy as np

KERNELS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "matmul": np.matmul, "tanh": np.tanh, "transpose": np.transpose, "mean": np.mean, "read": lambda value: value,
}
_current = None  # what runs the step at hand: None (eager execution), a Tracer or a Skeleton


# -- the tensors and operations of a program -----------------------------------------------------------------------------------

class Tensor:
    """A value or, in a skeleton, the promise of one: `source` says which operation gives it."""

    def __init__(self, value=None, source=None):
        self.value, self.source = value, source

    def __array__(self, dtype=None, copy=None):
        if _current is not None:
            _current.read(self)
        return np.asarray(self.value, dtype)

    def __float__(self):
        return float(np.asarray(self))

    __add__ = lambda a, b: operation("add", a, b)  # noqa: E731
    __sub__ = lambda a, b: operation("sub", a, b)  # noqa: E731
    __rsub__ = lambda a, b: operation("sub", b, a)  # noqa: E731
    __mul__ = lambda a, b: operation("mul", a, b)  # noqa: E731
    __matmul__ = lambda a, b: operation("matmul", a, b)  # noqa: E731
    T = property(lambda a: operation("transpose", a))


class Variable:
    """A value that operations change. A co-executed step changes it when it is over, and never by half (the commit)."""

    def __init__(self, value):
        self.value = np.asarray(value, "float64")

    def read(self):
        return operation("read", self)

    def assign(self, x):
        operation("assign", self, x)


def tanh(x):
    return operation("tanh", x)


def mean(x):
    return operation("mean", x)


def operation(name, *inputs):
    """What all operations of a program come to."""
    return Tensor(compute(name, inputs)) if _current is None else _current.operation(name, inputs)


def compute(name, inputs):
    values = [x.value if isinstance(x, (Tensor, Variable)) else x for x in inputs]
    if name == "assign":
        inputs[0].value = values[1]
        return None
    return KERNELS[name](*values)


def location(stop):
    """The lines of the calls that led here, outermost first, from the step on."""
    frame, lines = sys._getframe(1), []
    while frame.f_code is not stop:
        if frame.f_code.co_filename != __file__ or frame.f_code.co_name not in _OWN:
            lines.append(frame.f_lineno)
        frame = frame.f_back
    return (frame.f_lineno, *reversed(lines))


_OWN = frozenset(["location", "note", "operation", "read", "__array__", "__float__", "<lambda>", "assign", "tanh", "mean"])


# -- tracing -------------------------------------------------------------------------------------------------------------------

class Tracer:
    """Runs a step eagerly, and records its operations: (name, location, inputs)."""

    def __init__(self, step):
        self.step, self.trace, self.made, self.reads = step, [], {}, []

    def operation(self, name, inputs):
        made = Tensor(compute(name, inputs))
        self.note(name, inputs)
        self.made[id(made)] = made, len(self.trace) - 1
        return made

    def note(self, name, inputs):
        self.trace.append((name, location(self.step.code), [self.describe(x) for x in inputs]))

    def read(self, tensor):
        """Python reads a value. (It is read once: Python has it then.)"""
        if id(tensor) in self.made and tensor not in self.reads:
            self.reads.append(tensor)
            self.note("fetch", [tensor])

    def describe(self, x):
        """An input: what an operation of the step gave, a variable, a number (a constant, part of the graph), or anything else, which Python feeds."""
        if id(x) in self.made:
            return "value", self.made[id(x)][1]
        return ("variable", x) if isinstance(x, Variable) else ("number", x) if isinstance(x, (int, float)) else ("feed", None)


# -- merging -------------------------------------------------------------------------------------------------------------------

class Node:
    """An operation of the TraceGraph. `sources[k]` are the nodes that may give its k-th input: if these are several, Python tells which."""

    def __init__(self, key):
        self.key, self.sources, self.successors = key, {}, []

    def __repr__(self):
        return f"{self.key[0]}@{self.key[1][-1]}" if self.key[1] else self.key[0]


class TraceGraph:
    def __init__(self):
        self.start, self.end, self.nodes = Node(("start", (), ())), Node(("end", (), ())), []

    def merge(self, trace):
        """Goes along a trace from the start: by an edge that is there, to a node that is there by a new edge, or to a new node. Returns whether anything was new."""
        at, way, size = self.start, [], self.size()
        for name, place, inputs in trace:
            key = name, place, tuple((kind, x) if kind in ("variable", "number") else (kind, None) for kind, x in inputs)
            follows = next((node for node in at.successors if node.key == key), None)
            if follows is None:  # the same operation may stand behind another branch, where the ways join; never one that leads here, which would be a circle
                follows = next((node for node in self.nodes if node.key == key and not leads(node, at)), None) or self.add(key)
                at.successors.append(follows)
            for k, (kind, position) in enumerate(inputs):
                if kind == "value" and way[position] not in follows.sources.setdefault(k, []):
                    follows.sources[k].append(way[position])
            at = follows
            way.append(at)
        if self.end not in at.successors:
            at.successors.append(self.end)
        return self.size() != size

    def size(self):
        return len(self.nodes), sum(len(node.successors) for node in (self.start, *self.nodes))

    def add(self, key):
        self.nodes.append(Node(key))
        return self.nodes[-1]


def leads(node, to):
    return node is to or any(leads(successor, to) for successor in node.successors)


# -- case assignment -----------------------------------------------------------------------------------------------------------

class Switch:
    """A place where one of several lists of operations runs: Python tells which (Case Select)."""

    def __init__(self, node, cases):
        self.node, self.cases = node, cases


def assign_cases(at, stop):
    """The operations behind a node and before `stop`, in their order. At a fork, each way up to where all of them meet again becomes a case."""
    found = []
    while at is not stop:
        if len(at.successors) == 1:
            at = at.successors[0]
            if at is not stop:
                found.append(at)
            continue
        meet = meeting_point(at)
        found.append(Switch(at, [[] if way is meet else [way, *assign_cases(way, meet)] for way in at.successors]))
        at = meet
        if at is not stop:
            found.append(at)
    return found


def meeting_point(fork):
    """The first node that all ways from here come to."""
    def behind(node):
        return [node, *(other for successor in node.successors for other in behind(successor))]

    reached = [behind(way) for way in fork.successors]
    common = [node for node in reached[0] if all(node in others for others in reached[1:])]
    return next(node for node in common if all(node is other or leads(node, other) for other in common))


def listing(operations, indent="  "):
    for item in operations:
        if isinstance(item, Switch):
            for k, case in enumerate(item.cases):
                yield f"{indent}case {k}:"
                yield from listing(case, indent + "    ")
        else:
            yield f"{indent}{item}"


# -- the graph runs --------------------------------------------------------------------------------------------------------------

class Cancelled(Exception):
    pass


class GraphRunner:
    """Runs the generated function on a thread of its own, for one step."""

    def __init__(self, operations):
        self.operations, self.values, self.assigned = operations, {}, {}
        self.feeds, self.selects, self.fetched = queue.Queue(), queue.Queue(), queue.Queue()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            self.execute(self.operations)
        except Cancelled:
            pass

    def execute(self, operations):
        for item in operations:
            if isinstance(item, Switch):
                self.execute(item.cases[self.take(self.selects)])
            else:
                self.execute_one(item)

    def execute_one(self, node):
        name, _, described = node.key
        inputs = []
        for k, (kind, x) in enumerate(described):
            if kind == "value":
                sources = node.sources[k]
                inputs.append(self.values[sources[0] if len(sources) == 1 else sources[self.take(self.selects)]])
            elif kind == "feed":
                inputs.append(self.take(self.feeds))
            else:
                inputs.append(self.assigned.get(x, x.value) if kind == "variable" else x)
        if name == "fetch":
            self.fetched.put(inputs[0])
        elif name == "assign":
            self.assigned[described[0][1]] = inputs[1]
        else:
            self.values[node] = KERNELS[name](*inputs)

    @staticmethod
    def take(channel):
        value = channel.get()
        if value is Cancelled:
            raise Cancelled
        return value

    def cancel(self):
        self.feeds.put(Cancelled)
        self.selects.put(Cancelled)
        self.thread.join()

    def commit(self):
        """Python has come to the end of the step, on a way that the graph knows: its variables may change."""
        self.thread.join()
        for variable, value in self.assigned.items():
            variable.value = value


# -- the skeleton --------------------------------------------------------------------------------------------------------------

class Skeleton:
    """Runs a step's Python beside its graph: operations are looked up, not computed."""

    def __init__(self, step):
        self.step, self.at, self.log, self.fallback = step, step.graph.start, [], None
        self.runner = GraphRunner(step.operations)

    def operation(self, name, inputs):
        if self.fallback is not None:
            return self.fallback.operation(name, inputs)
        key = name, location(self.step.code), tuple(self.describe(x) for x in inputs)
        for k, node in enumerate(self.at.successors):
            if node.key == key and all(inputs[i].source[1] in sources for i, sources in node.sources.items()):
                return self.go_on(k, node, name, inputs, key[1])
        self.leave_graph()
        return self.operation(name, inputs)

    def describe(self, x):
        return ("value", None) if isinstance(x, Tensor) and x.source is not None and x.source[0] is self else \
            ("variable", x) if isinstance(x, Variable) else ("number", x) if isinstance(x, (int, float)) else ("feed", None)

    def go_on(self, k, node, name, inputs, place):
        if len(self.at.successors) > 1:
            self.runner.selects.put(k)  # Case Select
        for i, (x, (kind, _)) in enumerate(zip(inputs, node.key[2])):
            if kind == "value" and len(node.sources[i]) > 1:
                self.runner.selects.put(node.sources[i].index(x.source[1]))
            if kind == "feed":
                self.runner.feeds.put(np.asarray(x.value if isinstance(x, Tensor) else x))  # Input Feeding
        self.at = node
        made = Tensor(source=(self, node))
        self.log.append((name, place, inputs, made))
        return made

    def read(self, tensor):
        """Output Fetching: Python waits for a value."""
        if self.fallback is None and tensor.value is None:
            self.operation("fetch", [tensor])
        if self.fallback is not None:
            self.fallback.read(tensor)
        elif tensor.value is None:
            tensor.value = self.runner.fetched.get()

    def leave_graph(self):
        """The step is on an unknown way: the graph is cancelled, the operations so far are made again, and the step goes on eagerly as a tracing step."""
        self.runner.cancel()
        self.fallback = tracer = Tracer(self.step)
        for name, place, inputs, made in self.log:
            tracer.trace.append((name, place, [tracer.describe(x) for x in inputs]))
            if name == "fetch":
                tracer.reads += inputs
            else:
                made.value = compute(name, inputs)
                tracer.made[id(made)] = made, len(tracer.trace) - 1

    def finish(self):
        """The end of the step. Returns the trace of one that fell back, which the graph is to learn."""
        if self.fallback is None and self.step.graph.end not in self.at.successors:
            self.leave_graph()  # it ends where no step has ended before
        if self.fallback is not None:
            return self.fallback.trace
        if len(self.at.successors) > 1:
            self.runner.selects.put(self.at.successors.index(self.step.graph.end))
        self.runner.commit()
        for _, _, _, made in self.log:
            made.value = self.runner.values.get(made.source[1])  # (the package does not wait here: a value is taken when somebody asks for it)
        return None


# -- the step ------------------------------------------------------------------------------------------------------------------

class coexecute:
    """The decorator: traces a step until two traces in a row teach the graph nothing, and co-executes it from then on."""

    def __init__(self, function):
        self.function, self.code = function, function.__code__
        self.graph, self.operations = TraceGraph(), None
        self.traced = self.coexecuted = self.fallbacks = 0

    def __call__(self, *args):
        global _current
        runner = _current = Tracer(self) if self.operations is None else Skeleton(self)
        try:
            result = self.function(*args)
            trace = runner.trace if isinstance(runner, Tracer) else runner.finish()
        finally:
            _current = None
        if isinstance(runner, Tracer):
            self.traced += 1
        elif trace is None:
            self.coexecuted += 1
        else:
            self.fallbacks += 1
        if trace is not None:
            self.learn(trace)
        return result

    def learn(self, trace):
        is_new = self.graph.merge(trace)
        if self.operations is not None or not is_new:
            self.operations = assign_cases(self.graph.start, self.graph.end)


# -- a program -----------------------------------------------------------------------------------------------------------------

def train(wrap, steps=60):
    """Trains y = tanh(x @ w) by hand-written gradients. Returns (what Python has noted, the weights, the step)."""
    random = np.random.default_rng(0)
    w, log = Variable(random.normal(size=(3, 1))), []
    truth = np.array([[0.5], [-1.0], [2.0]])

    def step(x, y):
        xs = Tensor(x)
        predicted = tanh(xs @ w.read())
        error = predicted - y
        loss = mean(error * error)
        gradient = xs.T @ (error * (1.0 - predicted * predicted))
        if float(loss) > 0.05:  # Python decides, by a value that it reads
            gradient = gradient * 0.02
        else:
            gradient = gradient * 0.05
        w.assign(w.read() - gradient)
        log.append(round(float(loss), 12))  # Python notes something
        return loss

    made = wrap(step)
    for _ in range(steps):
        x = random.normal(size=(16, 3))
        made(x, np.tanh(x @ truth))
    return log, w.value, made


def main():
    log, weights, _ = train(lambda step: step)
    same_log, same_weights, step = train(coexecute)
    print(f"{step.traced} steps were traced, {step.coexecuted} co-executed, {step.fallbacks} fell back and taught the graph a new way")
    print("the graph function:")
    print("\n".join(listing(step.operations)))
    print(f"loss {log[0]:.3f} -> {log[-1]:.3f}")
    assert same_log == log and (same_weights == weights).all(), "co-execution must give what eager execution gives"
    print("equal to eager execution, bit for bit")


if __name__ == "__main__":
    main()
