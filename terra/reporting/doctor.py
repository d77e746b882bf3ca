"""`python -m terra doctor`: whether Terra can work on the installed TensorFlow, and what is missing if it cannot.

Nothing of Terra's that needs private names is imported before these were looked for, so that the answer comes where `import terra` fails.
"""

import importlib
import importlib.metadata
import importlib.util
import os
import sys

from terra import errors
from terra.version import __version__


def examine() -> tuple[str, bool]:
    """Returns (all that was found, as text; whether nothing is wrong)."""
    try:
        version = importlib.import_module("tensorflow").__version__
    except ImportError as error:
        return f"TensorFlow cannot be imported ({error}); install it: pip install tensorflow.", False
    from terra.tf.support import behaviours, names, versions

    lines = [f"terra {__version__}, Python {sys.version.split()[0]}, TensorFlow {version}, {', '.join(map(' '.join, installed('keras', 'keras-nightly', 'tf_keras', 'numpy').items()))}"]
    wrong = []
    known, missing = names.all_names(), names.missing()
    lines.append(f"private names: {len(known) - len(missing)} of {len(known)} are there")
    wrong += [f"missing: {name}" for name in missing]
    failing = behaviours.failing()
    lines.append(f"behaviours: {len(behaviours.CHECKS) - len(failing)} of {len(behaviours.CHECKS)} are as Terra needs them")
    wrong += [f"not so: {behaviour}" for behaviour in failing]
    if not versions.is_supported(version):
        lines.append(f"TensorFlow {version} is none of the versions that Terra was tried on ({versions.SUPPORTED}); {versions.VARIABLE}=1 lets a newer one run if all checks pass")
    if not wrong:
        if versions.minor_version(version) > versions.NEWEST:
            os.environ[versions.VARIABLE] = "1"  # in this process, which goes on with the checks
        wrong += _step()
        lines.append("a step: " + ("it differs" if wrong else "co-executed, with eager's results"))
    lines += wrong
    if not wrong:
        others = special_cases()
        lines.append(f"special cases that do not apply to these versions: {len(others) or 'none'}")
        lines += [f"  {case}" for case in others]
    return "\n".join(lines), not wrong


def installed(*packages: str) -> dict[str, str]:
    """Returns the versions of those of these packages that are installed, by package."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _step() -> list[str]:
    """Trains a small model eagerly and co-executed. Returns what is wrong with that, in sentences."""
    try:
        coexecute = importlib.import_module("terra").coexecute  # has all of Terra imported
        from terra.tf.private_names import tf

        def step(w, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        results = {}
        coexecuted = coexecute(step, wait_for_graph=True)
        for name, way in ("eager", step), ("co-executed", coexecuted):
            w = tf.Variable(tf.ones([3, 2]))
            results[name] = [float(way(w, tf.fill([4, 3], 0.1 * k))) for k in range(12)]
    except (errors.TerraError, ImportError, AttributeError, TypeError) as error:
        return [f"a small step raised {type(error).__name__}: {error}"]
    if results["eager"] != results["co-executed"]:
        return ["a small step: its results differ from eager execution"]
    return [] if coexecuted.stats().coexecuted_steps else ["a small step was never co-executed"]


def special_cases() -> list[str]:
    """Lists what Terra knows of classes and functions that the installed versions of Keras and TensorFlow have not, or have in another form."""
    from terra.frameworks import keras
    from terra.runtime.tensors import size_readers

    found = []
    for module, name, methods in keras.ENTRIES:
        cls = getattr(importlib.import_module(module), name, None) if _is_there(module) else None
        if cls is None:
            found.append(f"{module}.{name} is not there")
        else:
            found += [f"{module}.{name} has no method {method}" for method in methods if not hasattr(cls, method)]
    for file, name, applies in size_readers.special_cases():
        if not applies:
            found.append(f"{file}: {name} is not there, or reads other sizes than known: where sizes are unknown it waits for them")
    return found


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False
