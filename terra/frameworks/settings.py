"""Global settings of TensorFlow, Keras 3 and tf_keras, on which what a call does may depend."""

import sys

from terra.tf import private_names as tfi


def settings(root):
    """Global settings: device, whether tf.functions run eagerly; of the Keras called `root`, what its configuration says, call context and scopes."""
    found = [tfi.device_name(), tfi.eager_function_run.RUN_FUNCTIONS_EAGERLY]
    if root is None:
        return found
    config, state, legacy = _holders.get(root) or _find_holders(root)
    if config is not None:
        found += [config.get("_FLOATX"), config.get("_EPSILON"), config.get("_IMAGE_DATA_FORMAT")]
    if state is not None:
        tracked = vars(state.GLOBAL_STATE_TRACKER)
        context = tracked.get("current_call_ctx")
        cast = tracked.get("autocast_scope")  # another one at each call of a layer of mixed precision
        found += [context is None, getattr(cast, "dtype", None), *map(tracked.get, ("distribution", "stateless_scope", "global_seed_generator"))]
        if context is not None:
            found += [v for k, v in sorted(vars(context).items()) if k != "entry_layer"]
    if legacy is not None:
        backend, contexts, casts = legacy
        phases = backend._GRAPH_LEARNING_PHASES
        found.append(phases.get(backend._DUMMY_EAGER_GRAPH.key) if len(phases) else None)
        found.append(vars(casts).get("dtype"))
        context = vars(contexts).get("call_context")
        if context is not None:
            found.append(context._in_keras_graph)
            if context.in_call:
                held = context._state
                given, layer = held.get("call_context_args", {}), held["layer"]
                found += [held["saving"], held.get("training"), layer is None or vars(layer).get("_trainable"), *given, *given.values()]
    return found


_holders = {}  # root -> (namespace of its configuration, module of Keras 3's global state, where tf_keras keeps the like)


def _find_holders(root):
    """The entry of `_holders`, which is kept once that Keras is imported."""
    config = _module_of(root, ("backend.config", "backend_config"))
    state, backend, contexts, casts = (_module_of(root, (name,)) for name in (
        "backend.common.global_state", "backend", "engine.base_layer_utils", "mixed_precision.autocast_variable"))
    legacy = None
    if contexts is not None and casts is not None and hasattr(backend, "_GRAPH_LEARNING_PHASES"):
        legacy = backend, contexts._call_context, casts._autocast_dtype
    found = vars(config) if config is not None else None, state, legacy
    if root == "tensorflow" or (config is not None and (state is not None or legacy is not None)):
        _holders[root] = found
    return found


def _module_of(root, names):
    """Returns the first module that is imported of those called `names` in the package `root`, or None."""
    return next(filter(None, (sys.modules.get(f"{root}.src.{name}") for name in names)), None)
