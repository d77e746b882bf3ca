"""Single operations in a graph: as they are, or as others that give the same result faster."""

from terra.graph.trace import CONST, RESOURCE
from terra.runtime.generation.functiondef import attr, attr_protos, dtype, func, type_list
from terra.runtime.generation.kernels import rewrites, eager_kernels, candidate_sampling
from terra.tf import private_names as tfi
from terra.tf import opschema
from terra.tf.fingerprints import COMPILED
from terra.tf.private import runtime_functions

VARIANT_ENUM = tfi.types_pb2.DT_VARIANT
FEW_SHAPES = 4  # that an operation has had, up to which it is worth a graph that is right for the first of them only


class Operations:
    """Writes the operations of one graph."""

    def __init__(self, generator):
        self._generator = generator
        self._attr_protos = {}
        self._apart = {}  # a function that is not inlined, and what its variables are -> the name of the copy that is called

    def protos(self, info):
        """The attributes of an operation as protos."""
        protos = self._attr_protos.get(info)
        if protos is None:
            protos = self._attr_protos[info] = attr_protos(info)
        return protos

    def _protos_of(self, info, names):
        protos = self.protos(info)
        return {name: protos[name] for name in names}

    def emit(self, scope, node, refs, label, harmless):
        """Write the operation of a node. Returns refs of its outputs, by number."""
        site = node.payload
        event, info = site.event, site.event.info
        if info.category == opschema.VARIABLE:
            return self._generator.emit_variable_op(scope, node, refs, label)
        if info.op_type in opschema.SAMPLERS:
            return candidate_sampling.sampled_candidates(scope.builder, info.op_type, refs, self.protos(info), label)
        if info.category == opschema.RANDOM:
            return [eager_kernels.stateless_random(scope.builder, info.op_type, refs, self.protos(info), label)]
        outputs = self._scaled(scope, site, refs, label) if harmless and info.op_type in eager_kernels.SCALING else None
        outputs = outputs or self._otherwise(scope, node, refs, label) or self.plain(scope, info, event, refs, label)
        if harmless and info.op_type == "BroadcastTo":
            scope.spread.note(refs, outputs[0], self.protos(info), event.out_shapes[0])
        return outputs

    def _scaled(self, scope, site, refs, label):
        scalars = [kind[0] == CONST and kind[1].key[1] == () for kind in site.kinds]
        result = scope.spread.scaled(scope.builder, site.event.info.op_type, refs, scalars, self.protos(site.event.info), label)
        return result and [result]

    def _otherwise(self, scope, node, refs, label):
        """The outputs of a faster way to compute an operation, which is right for the shapes that it had first; None if there is none."""
        generator, op_type = self._generator, node.payload.event.info.op_type
        if generator.fixed is None or generator.barriers or op_type not in rewrites.TYPES or generator.is_open(node):
            return None
        fixes = op_type not in rewrites.OF_ANY_SHAPE
        known = self._generator.fixed.get(node) if self._generator.fixed and fixes else dict(node.payload.shapes)
        question = rewrites.question(node, known)
        way = question and rewrites.find(question)
        if way is None or (fixes and len(known) > (1 if self._generator.early else FEW_SHAPES)):
            return None
        if fixes:
            self._generator.out.fixed[node] = dict([next(iter(known.items()))])
            self._generator.out.varies = self._generator.out.varies or len(known) > 1
            refs = [ref if value is not None else self._check_shape(scope, ref, enum, shape, label)
                    for ref, enum, shape, value in zip(refs, question.input_enums(), question.shapes, question.constants)]
        return way(scope.builder, refs, label)

    def _check_shape(self, scope, ref, enum, shape, label):
        """The ref of the same tensor: the graph fails, and nothing is committed, if it has another shape."""
        checked = scope.checked.get((ref, shape))
        if checked is None:
            name = scope.builder.node("EnsureShape", [ref], {"T": dtype(enum), "shape": runtime_functions.as_attr_value(shape, "shape", "shape")}, label)
            checked = scope.checked[ref, shape] = name + ":output:0"
            scope.checks.add(name)
        return checked

    def plain(self, scope, info, event, refs, label, controls=()):
        """Write an operation as it is, or as eager execution computes it. Returns refs of its outputs."""
        builder = scope.builder
        if info.schema.is_function:
            fdef = info.schema.fdef
            self._generator.out.library.update(info.schema.library)
            op = "StatefulPartitionedCall" if fdef.signature.is_stateful else "PartitionedCall"
            config = _string_attr(info.raw.get("config_proto", b""))
            attrs = {
                "Tin": type_list([a.type for a in fdef.signature.input_arg]),
                "Tout": type_list([a.type for a in fdef.signature.output_arg]),
                "f": func(self._called(fdef, config, event.refs)),
                "config": attr(""), "config_proto": attr(config),
                "executor_type": attr(_string_attr(info.raw.get("executor_type", b""))),
            }
            if COMPILED in fdef.attr:
                attrs[COMPILED] = fdef.attr[COMPILED]
            name = builder.node(op, refs, attrs, label, controls)
            if fdef.signature.is_stateful:
                builder.must(name)
            return [f"{name}:output:{k}" for k in range(len(fdef.signature.output_arg))]
        if info.op_type == "AddN" and len(refs) > 2 and not info.device and event.out_enums[0] != VARIANT_ENUM and not self._generator.has_open_shape(event):
            return [eager_kernels.sum_in_order(builder, refs, self._protos_of(info, ("T",)), label)]
        if self._generator.exact and not self._generator.compiled and info.op_type == "MaxPoolGrad" and not info.device:
            protos, shape = self.protos(info), None if self._generator.has_open_shape(event) else event.out_shapes[0]
            if eager_kernels.may_pool_by_onednn(protos, scope.pooled.get((refs[0], refs[1])), shape):
                result, branches = eager_kernels.pool_gradient(builder, refs, protos, label)
                self._generator.out.fdefs += branches
                return [result]
        if self._generator.exact:
            refs = eager_kernels.keep_apart(builder, info.op_type, refs, self.protos(info), label)
        name = builder.node(info.op_type, refs, self.protos(info), label, controls)
        if info.device:
            builder.fdef.node_def[-1].device = info.device
        if not info.output_refs:
            builder.must(name)
        elif info.op_type == "MaxPool":
            scope.pooled[refs[0], f"{name}:output:0"] = self.protos(info)
        return [f"{name}:{ref}" for ref in info.output_refs]

    def _called(self, fdef, config, refs):
        """The name of the function to call: where eager execution has grappler rewrite it, that must happen here too, or last bits differ. It does if
        the call is not inlined.

        Grappler must know of variables what it knows there.
        """
        if not self._generator.exact or self._generator.compiled or COMPILED in fdef.attr or not runtime_functions.has_grappler(config):
            return fdef.signature.name
        known = {k: ref[1]._handle_data for k, ref in enumerate(refs) if ref[0] == RESOURCE and ref[1]._handle_data is not None}
        key = fdef.signature.name, *[(k, data.SerializeToString()) for k, data in known.items()]
        name = self._apart.get(key)
        if name is None:
            name = self._apart[key] = f"{self._generator.prefix}_{fdef.signature.name}_{len(self._apart)}"
            apart = type(fdef)()
            apart.CopyFrom(fdef)
            apart.signature.name = name
            apart.attr["_noinline"].b = True
            for k, data in known.items():
                attrs = apart.arg_attr[k].attr
                attrs["_handle_dtypes"].list.type.extend(held.dtype for held in data.shape_and_type)
                attrs["_handle_shapes"].list.shape.extend(held.shape for held in data.shape_and_type)
            self._generator.out.fdefs.append(apart)
        return name


def _string_attr(value):
    return value if isinstance(value, (bytes, str)) else b""
