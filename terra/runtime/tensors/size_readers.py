"""Framework code that looks at all the sizes of a tensor, though what it does depends on none that is not known.

Keras checks the input of each layer against a specification, looks for a bias that can be added as one, asks whether a convolution has left nothing
over. Where a size depends on data, or is left unknown (see `dynamic_arguments`), each look would be a value that Python waits for. Here are those
functions that can do without, each with the condition under which it can: then they see None in the place of the size, as symbolic tensors have it,
and do what they would have done with any number there. Some conditions are not about what is known: then the graph computes whether they hold, and
Python reads that, which is the same at each step.

Each function is known by its name, its file, and a fingerprint of its source: another version of it, which may do otherwise, reads.
"""

import hashlib
import importlib.util
import inspect
import pathlib
import threading
import types

from terra.runtime.interpreter.profilers import unwatched
from terra.runtime.tensors.comparing import begin_alike
from terra.tf.private import composites
from terra.tf import private_names as tfi

_UNSEEN = object()
_rules = {}  # (end of the file's name, name of the function) -> {fingerprint: rule, or what it is known as}
_names = set()  # of these functions
_found = {}  # code of such a name -> its rule, what it is known as, or None
_last = threading.local()  # the tensors that were found to meet a condition, for code that looks several times


def seen_by(tensor, known, frame):
    """Returns what the code that iterates over the shape of a tensor is to see of it; None if it has to be read.

    known: its sizes, None for those that are not known. frame: of TensorFlow's method, which that code has called.
    """
    reader = frame.f_back
    rule = _rule_of(reader.f_code)
    return rule(tensor, known, reader) if callable(rule) else None


def item_seen_by(tensor, known, index, frame):
    """Like `seen_by`, for an item, or a slice, of which not all is known; None if it has to be read."""
    reader = frame.f_back
    rule = _rule_of(reader.f_code)
    if type(index) is slice:
        seen = rule(tensor, known, reader) if rule in _SLICING else None
        return None if seen is None else seen[index]
    may = rule is _HANDS_ON or (rule is _WARNS and type(reader.f_locals["axis"]) is int)
    return SizeToCompare(tensor, index) if may else None


def is_true_by(frame):
    """Returns whether what the caller of `frame` tells of a tensor's shape is so for sure."""
    reader = frame.f_back
    rule, last = _rule_of(reader.f_code), getattr(_last, "masked", None)
    return rule is _TELLS or (rule is _masked and last is not None and reader.f_locals["mask"]._id == last[1])  # else it has read sizes


class SizeToCompare:
    """A size that is not known, for code that does nothing but compare it (the graph does), or hand it on to code of Terra's."""

    __slots__ = ("_tensor", "_index")

    def __init__(self, tensor, index):
        self._tensor, self._index = tensor, index

    def __eq__(self, other):
        return bool(tfi.tf.equal(tfi.tf.shape(self._tensor)[self._index], other))

    __hash__ = None

    def __index__(self):
        return self._tensor.shape[self._index]

    __int__ = __index__


def _rule_of(code):
    if code.co_name not in _names:  # nearly all others, which are not to be kept
        return None
    rule = _found.get(code, _UNSEEN)
    if rule is _UNSEEN:
        rule = _found[code] = _find(code)
    return rule


def _find(code):
    versions = next((found for (file, name), found in _rules.items() if code.co_name == name and code.co_filename.replace("\\", "/").endswith(file)), None)
    return None if versions is None else versions.get(fingerprint(code))


def fingerprint(code):
    """Of the source of a function, without its blanks; None if there is no source."""
    try:
        source = unwatched(inspect.getsource, code)
    except (OSError, TypeError):
        return None
    return hashlib.sha1("".join(source.split()).encode()).hexdigest()[:12]


def special_cases():
    """Lists (file, function, whether the installed version of it is one that is known) of all functions that are known here."""
    found = []
    for (file, name), versions in _rules.items():
        spec = importlib.util.find_spec(file.partition("/")[0])
        path = None if spec is None else pathlib.Path(spec.origin).parents[1] / file
        there = [] if path is None or not path.exists() else _codes(compile(path.read_text(encoding="utf-8"), str(path), "exec"))
        found.append((file, name, any(code.co_name == name and fingerprint(code) in versions for code in there)))
    return found


def _codes(code):
    """All code objects in one, itself among them."""
    return [code, *(inner for constant in code.co_consts if isinstance(constant, types.CodeType) for inner in _codes(constant))]


def _add(rule, file, name, *fingerprints):
    _rules[file, name] = dict.fromkeys(fingerprints, rule)
    _names.add(name)
    return rule


def _rule(file, name, *fingerprints):
    return lambda rule: _add(rule, file, name, *fingerprints)


# Functions that do not iterate over shapes themselves, or read if they do; but others ask who has called them.
_CHECKS = "looks at shapes through `standardize_shape`"
_WARNS = "compares one size with 1"
_TELLS = "tells what is known of its result"
_HANDS_ON = "asks for the length, to hand it on to `rnn`, which `recurrent_layers` replaces"
_LIKENS = "asks for a shape in order to make others of that shape"
_FLATTENS = "the same, where only the number of examples may be unknown"
_ASKS = "hands on what the backend's `shape` gives"
for _known_as, *_function in [
    (_CHECKS, "keras/src/layers/input_spec.py", "assert_input_compatibility", "5dd4fc6b86f3", "cb1db49c59aa", "b9bc57609b37"),
    (_WARNS, "keras/src/ops/nn.py", "softmax", "80c29402790a", "65e997d288f4", "9b2be6bb3d1a"),
    (_TELLS, "tensorflow/python/ops/math_ops.py", "tensordot", "e766532c81d0", "df5df93ba950"),
    (_TELLS, "tensorflow/python/ops/ragged/ragged_tensor.py", "to_tensor", "e04727b3fcbe"),
    (_HANDS_ON, "keras/src/layers/rnn/rnn.py", "call", "0cd68610558f", "c3996358dca4", "ee12422b6c44"),
    (_HANDS_ON, "keras/src/layers/rnn/rnn.py", "inner_loop", "fcde20a8ad95", "428e4ca94e37"),
    (_LIKENS, "keras/src/layers/normalization/group_normalization.py", "call", "8c4469f0e418", "260fc38f6ddc"),
    (_LIKENS, "keras/src/layers/regularization/gaussian_noise.py", "call", "7d51209390ce"),
    (_LIKENS, "keras/src/layers/regularization/gaussian_dropout.py", "call", "1d4b6baa557b"),
    (_LIKENS, "keras/src/layers/regularization/spatial_dropout.py", "_get_noise_shape", "ae6dc53d01b8"),
    (_LIKENS, "keras/src/layers/rnn/bidirectional.py", "_call_fused_gru", "2248576259f3"),
    (_LIKENS, "keras/src/layers/rnn/bidirectional.py", "_call_fused_lstm", "89ec96193332"),
    (_FLATTENS, "keras/src/layers/reshaping/flatten.py", "call", "6cdd6b76e08d"),
    (_ASKS, "keras/src/ops/core.py", "shape", "b8d820a5bdcb", "2b229e2ca1e4"),
]:
    _add(_known_as, *_function)


@_rule("tf_keras/src/engine/input_spec.py", "assert_input_compatibility", "1f52a4cb7673", "07a49d345dd1")
def _checked(tensor, known, reader):
    """It looks at the sizes that a specification tells."""
    return known if passes(reader.f_locals["spec"], known) else None


def _unknown_sizes(tensor, known):
    """Those sizes of a tensor that are not known, as a tensor."""
    shape = tfi.tf.shape(tensor)
    return tfi.tf.stack([shape[k] for k, d in enumerate(known) if d is None])


def _is_met(name, tensors, condition):
    """Returns whether the graph finds that these tensors meet a condition; code that looks at them several times asks once."""
    ids = tuple([x._id for x in tensors])
    if getattr(_last, name, None) != ids:
        if not bool(condition()):
            return False
        setattr(_last, name, ids)
    return True


@_rule("keras/src/backend/common/variables.py", "standardize_shape", "80cf2abc5572", "ed0a67cdb0fd", "6ad4929fc599")
def _standardised(tensor, known, reader):
    """It hands on what it gets, with checks of the sizes that it sees."""
    caller = reader.f_back
    return known if _rule_of(caller.f_code) is _CHECKS and passes(caller.f_locals["spec"], known) else None


def passes(spec, known):
    """Returns whether a tensor of which these sizes are known meets a layer's `InputSpec`, whatever the others are."""
    rank = len(known)
    wanted = spec.shape
    if spec.dtype is not None:
        return False
    if (spec.ndim is not None and not spec.allow_last_axis_squeeze and rank != spec.ndim) or (
            spec.max_ndim is not None and rank > spec.max_ndim) or (spec.min_ndim is not None and rank < spec.min_ndim):
        return False
    for axis, size in (spec.axes or {}).items():
        if size is not None and (not -rank <= axis < rank or known[axis] != size):
            return False
    if wanted is None:
        return True
    ways = [known]
    if spec.allow_last_axis_squeeze and known and known[-1] in (1, None):
        ways = [known[:-1]] if known[-1] == 1 else [known, known[:-1]]
    if spec.allow_last_axis_squeeze and wanted and wanted[-1] == 1:
        wanted = wanted[:-1]
    return all(size is None or size == d for way in ways for size, d in zip(wanted, way))


@_rule("keras/src/backend/tensorflow/numpy.py", "add", "09bd6e5ab218")
def _added(tensor, known, reader):
    """It looks whether the second summand is a bias: a vector as long as one of two axes of the first."""
    held = reader.f_locals
    if tensor is held["x2"]:
        long = sum(d is not None and d > 1 for d in known)
        is_none = len(held["x1"].shape) < 2 or long > 1 or (long == 1 and bool(tfi.tf.reduce_any(_unknown_sizes(tensor, known) > 1)))
        return known if is_none else None
    return known if known[-1] == held["x2_squeeze_shape"][0] else None


@_rule("keras/src/backend/tensorflow/nn.py", "_conv", "1e3e687e9da1", "4acea17e7775")
def _convolved(tensor, known, reader):
    """It looks whether the result is empty, though the input is not."""
    if 0 in known:
        return None
    unknown = [k for k, d in enumerate(known) if d is None]
    cannot_be = unknown == [0] or reader.f_locals["padding"].lower() == "same"
    return known if cannot_be or bool(tfi.tf.reduce_all(_unknown_sizes(tensor, known) > 0)) else None


@_rule("keras/src/backend/tensorflow/numpy.py", "is_valid_for_custom_ops", "30b84bb482fe")
def _multiplied(tensor, known, reader):
    """It looks whether sizes are known, which they are in eager execution."""
    return tuple([1 if d is None else d for d in known])


@_rule("keras/src/backend/tensorflow/numpy.py", "use_custom_ops", "e2e7e9ae4c4b")
def _reshaped(tensor, known, reader):
    """It reshapes factors and products: to sizes that the graph knows."""
    shape = tfi.tf.shape(tensor)
    return tuple([shape[k] if d is None else d for k, d in enumerate(known)])


@_rule("tensorflow/python/ops/special_math_ops.py", "_einsum_v2", "1afec951c5da")
def _summed(tensor, known, reader):
    """It looks for the best order, of more than two factors."""
    return known if len(reader.f_locals["inputs"]) <= 2 else None


@_rule("keras/src/backend/tensorflow/numpy.py", "squeeze", "c3297cba8f98", "58dddaffda67")
def _squeezed(tensor, known, reader):
    """It looks at the axes that it is given."""
    axes = reader.f_locals["axis"]
    return known if axes is not None and all(-len(known) <= axis < len(known) and known[axis] == 1 for axis in axes) else None


@_rule("tensorflow/python/ops/math_ops.py", "_tensordot_reshape", "38505bd9adcd")
def _contracted(tensor, known, reader):
    """It reshapes a factor to a matrix: to sizes that the graph knows, if Python does not."""
    return known if isinstance(reader.f_locals["axes"], (list, tuple)) else None


@_rule("keras/src/layers/normalization/group_normalization.py", "_reshape_into_groups", "4b02353e0e4b")
def _grouped(tensor, known, reader):
    """It reshapes to what it has been told, as the ones above, where it finds None here."""
    return known


@_rule("keras/src/losses/loss.py", "reduce_values", "b2e44b7644f7", "7de5981007f3")
def _averaged(tensor, known, reader):
    """It looks whether there are no values at all, and then how many there are, which the graph may tell."""
    if len(known) == 1 and not _is_met("filled", (tensor,), lambda: tfi.tf.shape(tensor)[0] > 0):
        return None
    return known


@_rule("keras/src/backend/tensorflow/core.py", "shape", "e6f0d4d6a69d", "520f9779ad19")
def _asked(tensor, known, reader):
    """It gives tensors for sizes that are not known, with which some layers can go on."""
    asks = reader.f_back
    if _rule_of(asks.f_code) is not _ASKS:
        return None
    rule = _rule_of(asks.f_back.f_code)
    return known if rule in (_HANDS_ON, _LIKENS, _grouped, _averaged) or (rule is _FLATTENS and None not in known[1:]) else None


@_rule("keras/src/backend/tensorflow/nn.py", "sparse_categorical_crossentropy", "9249c0705f84")
@_rule("keras/src/backend/tensorflow/nn.py", "categorical_crossentropy", "8ab8666ad5f9")
@_rule("keras/src/backend/tensorflow/nn.py", "binary_crossentropy", "fc54f59b67e9")
def _matched(tensor, known, reader):
    """It looks whether there is a prediction for each label."""
    held = reader.f_locals
    return _matches(held["target"], held["output"], known, reader)


@_rule("tensorflow/python/ops/nn_ops.py", "sparse_softmax_cross_entropy_with_logits", "98ea8de0483c")
def _asserted(tensor, known, reader):
    """It looks at that, too, and has the graph compare the shapes where they are not known."""
    held = reader.f_locals
    is_sure = begin_alike(held["labels"], held["logits"], len(held["labels"].shape))
    return None if is_sure else _matches(held["labels"], held["logits"], known, reader)


def _matches(labels, predictions, known, reader):
    of_classes = "sparse" in reader.f_code.co_name  # for each of which there is a number
    if len(labels.shape) != len(predictions.shape) - of_classes:
        return None

    def are_as_many():
        sizes = tfi.tf.shape(predictions)
        return tfi.tf.reduce_all(tfi.tf.equal(tfi.tf.shape(labels), sizes[:-1] if of_classes else sizes))

    return known if begin_alike(labels, predictions, len(labels.shape)) or _is_met("matched", (labels, predictions), are_as_many) else None


@_rule("tensorflow/python/ops/array_ops.py", "boolean_mask", "235ffeff1c55")
def _masked(tensor, known, reader):
    """It looks whether the mask has the sizes of what is masked, and tells what is known of that once it is reshaped."""
    held, last = reader.f_locals, getattr(_last, "masked", None)
    masked, mask, axis = held["tensor"], held["mask"], held["axis"]
    if last is not None and mask._id == last[1] and tensor._id in last:  # it looks several times
        return known
    rank = len(mask.shape)
    if not (tensor is masked or tensor is mask) or type(axis) is not int or not 0 <= axis <= len(masked.shape) - rank:
        return None
    is_like = _is_met("masked", (masked, mask), lambda: tfi.tf.reduce_all(tfi.tf.equal(tfi.tf.shape(masked)[axis:axis + rank], tfi.tf.shape(mask))))
    return known if is_like else None


@_rule("tensorflow/python/framework/tensor_shape.py", "assert_is_compatible_with", "19e34352815b")
def _likened(tensor, known, reader):
    """It compares the shapes of what is masked and of a mask, which the graph has compared then."""
    asks = reader.f_back
    return _masked(tensor, known, asks) if _rule_of(asks.f_code) is _masked else None


@_rule("tensorflow/python/framework/tensor_shape.py", "is_compatible_with", "56db288747d9", "2b2c630cbe0e")
def _compatible(tensor, known, reader):
    """It looks at the sizes itself in older versions of TensorFlow."""
    return _likened(tensor, known, reader.f_back) if _rule_of(reader.f_back.f_code) is _likened else None


@_rule("tensorflow/python/ops/ragged/ragged_tensor.py", "with_values", "71a4f74fa743")
def _exchanged(tensor, known, reader):
    """It looks whether there are as many new values of a ragged tensor as old ones."""
    old, new = reader.f_locals["self"].values, reader.f_locals["new_values"]
    if not (tensor is old or tensor is new) or composites.is_composite(type(old)) or composites.is_composite(type(new)):  # of ragged ones, the rows are counted
        return None
    return known if as_many(old, new) else None


@_rule("tensorflow/python/framework/sparse_tensor.py", "__init__", "40144f1a904c")
def _paired(tensor, known, reader):
    """It looks whether a sparse tensor has as many values as places."""
    places, values = reader.f_locals["indices"], reader.f_locals["values"]
    return known if (tensor is places or tensor is values) and as_many(places, values) else None


def as_many(a, b):
    """Returns whether the first sizes of two tensors are equal."""
    return begin_alike(a, b, 1) or _is_met("as_many", (a, b), lambda: tfi.tf.equal(tfi.tf.shape(a)[0], tfi.tf.shape(b)[0]))


@_rule("tensorflow/python/framework/tensor_shape.py", "merge_with", "54728f19d54d")
def _ranked(tensor, known, reader):
    """It checks the ranks of these."""
    asks = reader.f_back.f_back
    return _paired(tensor, known, asks) if reader.f_back.f_code.co_name == "with_rank" and _rule_of(asks.f_code) is _paired else None


_SLICING = frozenset([_matched, _asserted, _masked, _exchanged])  # rules that are asked for slices, too
