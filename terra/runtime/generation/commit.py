"""Variables in a graph: operations on them, what is noted of those that cannot wait for the end, and the end: what has to have passed before variables are
updated, and the updates.
"""

from terra.errors import GenerationError
from terra.runtime.generation import undo
from terra.runtime.generation.functiondef import attr, dtype
from terra.runtime.generation.kernels import in_place_updates, eager_kernels
from terra.runtime.generation.kernels.eager_kernels import constant_proto
from terra.runtime.generation.undo import OldRows, OldValue
from terra.runtime.generation.variables import NEW_VALUE
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.variable_use import ASSIGN, ASSIGN_ADD, READ, READS_ONLY, SKIP

INT32 = tfi.types_pb2.DT_INT32


class Commits:
    """The part of the GraphGenerator for variables: operations on them, and their updates in the end."""

    def _keep_values(self, top):
        """Note what the variables hold that are updated before the barrier, other than by rows."""
        for v in sorted(self.accesses.whole):
            enum = opschema.variable_enum(self.handles[v])
            note = self._note_of(("value", v), OldValue, self.handles[v], enum)
            old = top.builder.node("ReadVariableOp", [top.get(("res", v))], {"dtype": dtype(enum)}, "keep") + ":value:0"
            self._note_access(top, [(v, False)], self._set(top, note.value, old, enum))

    def _keep_rows(self, scope, node, refs, label, found):
        """Note what the rows hold that an update before the barrier changes, and then which ones these are."""
        info = node.payload.event.info
        place = in_place_updates.place_of_indices(info.op_type)
        index_enum, indices = info.attrs["Tindices"], refs[place]
        for k, v, how in found:
            if type(v) is not int or how in READS_ONLY or v in self.accesses.whole:
                continue
            enum = opschema.variable_enum(self.handles[v])
            note = self._note_of((node, k), OldRows, self.handles[v], enum, index_enum, in_place_updates.is_of_elements(info.op_type))
            attrs = {"dtype": dtype(enum), "Tindices": dtype(index_enum)}
            rows = scope.builder.node(note.gathers, [refs[k], indices], attrs, label, self._order_controls(scope, [(v, False)])) + ":output:0"
            noted = self._set(scope, note.rows, rows, enum)
            self._note_access(scope, [(v, False)], self._set(scope, note.indices, indices, index_enum, [noted]))

    def _note_of(self, key, kind, *args):
        """Returns what is noted for undoing an update, which it makes the first time: all forms of a graph use the same variables for it."""
        note = self.store.notes.get(key)
        if note is None:
            note = self.store.notes[key] = kind(*args)
        self.out.undo.append(note)
        return note

    def _set(self, scope, handle, ref, enum, controls=()):
        """Assign a value to a variable of Terra's own; returns the name of the operation."""
        self.handles[id(handle)] = handle
        return _assign(scope.builder, scope.get(("res", id(handle))), ref, enum, "keep", controls)

    def emit_variable_op(self, scope, node, refs, label):
        found = self.accesses.access[node]
        if any(v in self.accesses.raw for _, v, _ in found):
            return self._emit_raw_variable_op(scope, node, refs, label, found)
        site = node.payload
        info = site.event.info
        (_, v, how), = found
        key = ("var", v)
        if how == READ:
            return [scope.get(key)]
        builder = scope.builder
        enum = self.accesses.enums[v]
        if how == "raw_read":
            protos = self.operations.protos(info)
            if info.op_type == "ResourceGather":
                axis = eager_kernels.first_axis(builder)
                name = builder.node("GatherV2", [scope.get(key), refs[1], axis], {
                    "Tparams": dtype(enum), "Tindices": protos["Tindices"], "Taxis": dtype(INT32), "batch_dims": protos["batch_dims"],
                }, label)
            else:
                name = builder.node(
                    "GatherNd", [scope.get(key), refs[1]], {"Tparams": dtype(enum), "Tindices": protos["Tindices"]}, label)
            return [name + ":output:0"]
        if how == SKIP:
            state = scope.get(key)
            return {0: state, NEW_VALUE: eager_kernels.skip_philox(builder, state, site.kinds[2][1], label)}
        if how == ASSIGN:
            new = refs[1]
        else:
            op = "AddV2" if how == ASSIGN_ADD else "Sub"
            new = builder.node(op, [scope.get(key), refs[1]], {"T": dtype(enum)}, label) + ":z:0"
        return {NEW_VALUE: new}

    def _emit_raw_variable_op(self, scope, node, refs, label, found):
        """An op that works on the variable itself: ordered after earlier accesses."""
        event = node.payload.event
        info = event.info
        raw = [(v, how not in READS_ONLY) for _, v, how in found if v in self.accesses.raw]
        for k, v, _ in found:
            if v not in self.accesses.raw and v in self.accesses.written:
                raise GenerationError("an op mixes forwarded and unforwarded variables")
        if node not in self.accesses.behind and in_place_updates.has_rows(node):
            self._keep_rows(scope, node, refs, label, found)
        controls = self._order_controls(scope, raw) + self.barriers
        before = len(scope.builder.node_names)
        outputs = self.operations.plain(scope, info, event, refs, label, controls)
        self._note_access(scope, raw, scope.builder.node_names[before])
        return outputs

    def _order_controls(self, scope, raw):
        controls = []
        for v, writes in raw:
            last_write, reads = scope.order.get(v, (None, ()))
            if last_write:
                controls.append(last_write)
            if writes:
                controls.extend(reads)
        return list(dict.fromkeys(controls))

    def _note_access(self, scope, raw, name):
        for v, writes in raw:
            last_write, reads = scope.order.get(v, (None, ()))
            scope.order[v] = (name, ()) if writes else (last_write, (*reads, name))

    def _can_run_behind(self, node, starts, accesses):
        """Returns whether an operation can run behind the barrier, see `in_place_updates.find`: it cannot fail there."""
        if accesses is not None:
            return (starts or self.forgiving) and in_place_updates.is_sure(node, accesses, self.is_open(node))
        return node.payload.event.info.category != opschema.RANDOM and self._is_harmless(node)

    def _prepare_behind(self, top):
        """Emit what the nodes behind the barrier take from before it; returns the refs."""
        taken = []
        for node in self._behind:
            for k in range(len(node.slots)):
                if not any(source in self.accesses.behind for source, _ in node.slots[k]):
                    taken.append(top.get(self.plan.slot_of[node, k]))
            for _, v, how in self.accesses.access.get(node, ()):
                if v not in self.accesses.raw and how != ASSIGN:
                    taken.append(top.get(("var", v)))
            is_open, label = self.is_open(node), self._label(node)
            if in_place_updates.places_to_check(node, is_open):
                self.accesses.checks.add(top.builder, node, self._input_refs(top, node, label), is_open, top.harmless, label)
        return taken

    def _commit(self, top, slots, results):
        """Barrier (and gate), then the updates of variables, and what else runs there. `results`: refs of what the function gives that is there before."""
        builder, out = top.builder, self.out
        later = [slot for slot in slots if not self.accesses.behind.isdisjoint(slot.defs)]
        new_values = [(slot.key[1], top.get(slot.key)) for slot in slots if slot not in later]
        # Also a node whose only readers are below must be passed.
        below = [ref for _, ref in new_values] + self._prepare_behind(top)
        names = [ref.split(":", 1)[0] for ref in below + results if ":" in ref]
        may_fail, sinks = builder.may_fail(top.harmless, names, top.checks)
        for name in set(sinks).difference(names):
            builder.must(name)  # or grappler would drop it, and its error
        # What calls functions gives its results before all that is in them has passed.
        waits_for = may_fail if self.forgiving else dict.fromkeys([*sinks, *builder.fdef.control_ret])
        barrier = builder.node("NoOp", (), {}, "barrier", waits_for)
        builder.must(barrier)
        if not slots and not self._behind and not out.undo:
            return
        if self.early:
            out.gate = self.new_queue((INT32,))
            (token,) = self._dequeue(top, out.gate, (INT32,), "gate", [barrier])
            barrier = token.split(":", 1)[0]
        for handle, enum in [note.emptied for note in out.undo]:
            self._set(top, handle, builder.const(("nothing", enum), lambda: constant_proto(undo.empty(enum), enum)), enum, [barrier])
        self._assign_all(top, new_values, [barrier])
        if self._behind:
            # What they work on in its place would be copied first while somebody still reads it.
            self.barriers = [builder.node("NoOp", (), {}, "barrier", [*sinks, barrier])]
            for node in self._behind:
                self._emit(top, node)
            self._assign_all(top, [(slot.key[1], top.get(slot.key)) for slot in later], self.barriers)

    def _assign_all(self, top, new_values, controls):
        for v, ref in new_values:
            _assign(top.builder, top.get(("res", v)), ref, self.accesses.enums[v], "commit", controls)


def _assign(builder, handle, ref, enum, label, controls):
    """Assigns another value to a variable; returns the name of the operation."""
    name = builder.node("AssignVariableOp", [handle, ref], {"dtype": dtype(enum), "validate_shape": attr(False)}, label, controls)
    builder.must(name)
    return name
