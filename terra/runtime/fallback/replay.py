"""Replay: how the operations that a step has matched are run imperatively, and its state put back.

It happens when a step leaves the known paths, raises, or when a kernel of its graph fails. Nothing of it was committed then, except for
updates in their place, which are undone first.
"""

from terra.runtime.generation import undo
from terra.runtime.tensors.value_key import ValueKey
from terra.runtime.tracing.tracer import real
from terra.tf import private_names as tfi
from terra.tf import opschema


class unrecorded:
    """Nothing that runs in this block is recorded on a tape."""

    def __enter__(self):
        self.stopped = tfi.tape_is_stopped()
        if not self.stopped:
            tfi.tape_stop()

    def __exit__(self, *exc):
        if not self.stopped:
            tfi.tape_restart()


def execute_again(node, inputs, own_attrs):
    """Run a matched operation imperatively, with the attributes that it had in this step if they may vary; an error carries a note with the line that issued
    it."""
    attrs = node.info.exec_attrs
    if own_attrs is not None:
        attrs = own_attrs + tuple(
            a for pair in zip(attrs[::2], attrs[1::2]) if pair[0] not in own_attrs[::2] for a in pair)
    # Through a generated wrapper, the fast path adds the op's name to the message.
    error = None
    try:
        return tfi.execute(tfi.context_handle(), node.device, node.op_type, inputs, attrs, node.n_out)
    except tfi.NotOkStatusException as status:
        error = tfi.status_to_exception(status)
    except tfi.OpError as raised:
        error = raised
    if not node.info.schema.is_function and not error.message.endswith(" name: "):
        error._message = error.message + " name: "
    try:
        raise_at(error, node)
    finally:
        error = None  # its traceback has this frame: they would keep each other, and all that the program's frames hold


def raise_at(error, node):
    """Raise `error` with a traceback entry, and a note, for the user's line that issued `node`."""
    origin = node.location.origin()
    if origin is None:
        raise error from None
    filename, line = origin
    if hasattr(error, "add_note"):
        error.add_note(f"terra: raised by {node.op_type}, issued at {filename}:{line}")
    code = compile("\n" * (line - 1) + "raise error from None", filename, "exec").replace(co_name="co-executed step")
    space = {"error": error}
    try:
        exec(code, space)
    finally:
        space.clear()  # the traceback has it
        error = None


def snapshot(handles):
    """Old values of variables."""
    return [(h, undo.read(h, opschema.variable_enum(h))) for h in handles]


def restore(checkpoint):
    for h, value in checkpoint:
        undo.assign(h, value)


def destroy(handles):
    """Free the variables that a step created and let go."""
    for h in handles:
        tfi.execute(tfi.context_handle(), "", "DestroyResourceOp", [h], ("ignore_lookup_error", True), 0)


class StepRecord:
    """All that it takes to run a dispatched step again imperatively, should one of its kernels fail."""

    __slots__ = ("log", "arguments", "survivors", "undo", "queues", "temporary", "before")

    def __init__(self, log, arguments, survivors, undo, queues, temporary):
        self.log = log
        self.arguments = arguments  # the step's tensor arguments, which the log may name by number
        self.survivors = survivors
        self.undo = undo
        self.queues = queues
        self.temporary = temporary  # handles of variables that the program has let go
        self.before = ()  # (handle, value) of variables, where a graph that has run is verified

    def landed(self):
        """The step is done."""
        destroy(self.temporary)

    def drop(self):
        """The graph has not run, and will not."""
        for queue in self.queues:
            queue.drain(tfi.context_handle())

    def replay(self):
        """Run the step's operations as eager execution would; raises what it would raise. The tensors that outlive the step get their values.

        Returns: {key: value} of all operations' outputs.
        """
        self.drop()
        undo.restore(self.undo)
        restore(self.before)
        values = {}
        with unrecorded():
            for node, refs, own_attrs in self.log:
                if node.category == opschema.FETCH:
                    continue
                inputs = [values[x] if type(x) is ValueKey else real(x if type(x) is not int else self.arguments[x]) for x in refs]
                for (_, _, key), value in zip(node.outs, execute_again(node, inputs, own_attrs)):
                    values[key] = value
        for t in self.survivors:
            t._value = t._hidden = values[t._key]
            t._owner = None
        return values
