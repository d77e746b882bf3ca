"""The command line: `python -m terra run SCRIPT`, `python -m terra code FILE[:FUNCTION]`, `python -m terra doctor`; `terra` is the same command.

What only a run needs is imported there: help and instrumented source are printed without TensorFlow.
"""

import argparse
import dataclasses
import difflib
import functools
import inspect
import logging
import os
import sys
import types

from terra import errors
from terra.options import LOOPS, Options, Stats, file_to_write
from terra.transform import to_code
from terra.version import __version__

_DESCRIPTION = "Imperative TensorFlow programs at graph speed: run a script co-executed, or look at what Terra makes of its source."
_RUN = """\
Runs SCRIPT as `python SCRIPT ARGS` does, and co-executes it: each block of a tf.GradientTape, or the function around it, each training step of a Keras
model that was compiled with run_eagerly=True, and each call of a model elsewhere, is a step that runs in the Python interpreter and as a symbolic graph
at the same time. The script needs no change. Options of this command stand ahead of the script's name."""
_CODE = """\
Prints the instrumented source of FUNCTION in FILE (such as train.py:train_step or model.py:Net.call), or of all functions in FILE. The file is read,
not run."""
_DOCTOR = """\
Looks whether the installed TensorFlow has each private name, and behaves in each way, that Terra relies on, and runs a small step. It says what is
missing, and ends with 1 if anything is. Special cases for versions of Keras that are not installed are listed, too: they do no harm."""
_COLUMNS = {
    "steps": "steps", "co-executed": "coexecuted_steps", "skipped": "whole_steps", "traced": "tracing_steps", "imperative": "imperative_steps", "traces": "traces",
    "graphs": "graphs", "fallbacks": "fallbacks", "feeds": "feeds", "fetches": "fetches",
}  # fmt: skip
_NO_STEPS = "terra: no step was run; is there a tf.GradientTape or a co-executed function in the script?"


class _Unusable(Exception):
    """The command line names something that is not there, or no Python; the message is one sentence."""


def parser():
    """Makes the parser of the command line: `call` is the command's function, `parser` the command's own parser."""
    made = argparse.ArgumentParser(prog="python -m terra", description=_DESCRIPTION)
    made.add_argument("--version", action="version", version=f"terra {__version__}")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser(
        "run", help="run a script or a module, co-executed", description=_RUN,
        usage="python -m terra run [--stats] [--explain] [--timeline FILE] [--report FILE] [OPTION ...] (SCRIPT | -m MODULE) [ARGS ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    run.add_argument("--stats", action="store_true", help="print what was co-executed, on standard error, when the script ends")
    run.add_argument("--explain", action="store_true", help="print how fast each step is, what would make it faster, and all that is known of it")
    run.add_argument("--timeline", metavar="FILE", help="write when Python, the graphs and their builders ran, and what waited for what, as a trace for Chrome or Perfetto (JSON)")
    run.add_argument("--report", metavar="FILE", help="write a page: verdict, source with marks, timeline, graph, statistics (HTML)")
    _add_step_options(run)
    run.add_argument("-m", dest="module", metavar="MODULE", nargs=argparse.REMAINDER, help="run a library module as `python -m MODULE` does")
    run.add_argument("script", metavar="SCRIPT", nargs=argparse.REMAINDER, help="the script, and its own arguments")
    run.set_defaults(call=_run, parser=run)

    code = commands.add_parser("code", help="print instrumented source", description=_CODE, formatter_class=argparse.RawDescriptionHelpFormatter)
    code.add_argument("target", metavar="FILE[:FUNCTION]")
    code.set_defaults(call=_code, parser=code)

    doctor = commands.add_parser("doctor", help="check that Terra can work on the installed TensorFlow", description=_DOCTOR, formatter_class=argparse.RawDescriptionHelpFormatter)
    doctor.set_defaults(call=_doctor, parser=doctor)
    return made


def _add_step_options(run):
    group = run.add_argument_group("options of the steps that this makes", "as terra.coexecute takes them")
    add = functools.partial(group.add_argument, default=argparse.SUPPRESS)
    add("--fast-forward", choices=("yes", "framework", "no"), help="what is skipped if its outcome is known: your own code too, the framework's only, nothing")
    add("--run-ahead", metavar="N", type=_count, help="how many steps may be in flight; 0: errors are raised by the step that fails")
    add("--optimize", action="store_true", help="let grappler rewrite the graph: no longer equal to eager bit for bit")
    add("--jit-compile", action="store_true", help="let XLA compile the graphs, or their pure stretches, where steps are faster so: no longer equal to eager bit for bit")
    add("--max-traces", metavar="N", type=_count, help="how many different traces one step may have")
    add("--wait-for-graph", action="store_true", help="wait while a graph is under construction")
    add("--reduce-retracing", action=argparse.BooleanOptionalAction,
        help="leave sizes of batches that vary unknown, so that code which does not look at them is recorded once: always, or never; else where new sizes keep coming")
    add("--verify", action="store_true", help="run each step both ways, and stop at one that would not have been like eager execution")
    add("--loops", choices=LOOPS, help="what becomes of loops whose trip count varies")


def _count(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _step_options(given):
    """Gives those of the steps' options that are on the command line, by name."""
    found = {field.name: getattr(given, field.name) for field in dataclasses.fields(Options) if hasattr(given, field.name)}
    if "fast_forward" in found:
        found["fast_forward"] = {"yes": True, "no": False}.get(found["fast_forward"], found["fast_forward"])
    return found


def main(arguments=None):
    """Runs a command line; returns its exit code. A script's own `sys.exit` passes through."""
    options, unknown = parser().parse_known_args(arguments)
    if unknown:
        what = f"there is no option {unknown[0]}" if unknown[0].startswith("-") else f"{unknown[0]} is one too many"
        options.parser.error(what + ("; the script's own options stand behind its name." if options.command == "run" else "."))
    try:
        return options.call(options)
    except _Unusable as error:
        print(f"terra {options.command}: {error}", file=sys.stderr)
        return 2


# -- run -----------------------------------------------------------------------------------------------------------------------

def _run(options):
    words = options.module if options.module is not None else options.script
    if not words:
        options.parser.error("name a script, or a module after -m.")
    from terra.frontends import launch

    run = _Run(options)
    start = launch.run_path if options.module is None else launch.run_module
    code, log = 0, logging.getLogger("terra")
    propagates, log.propagate = log.propagate, False  # what the script logs, and where, is its own matter: warnings of Terra's go to standard error
    try:
        start(words[0], words[1:], run.load)
    except launch.ScriptError as error:
        run.discard()
        raise _Unusable(*error.args) from error
    except SystemExit:
        raise
    except BaseException as error:
        run.clean(error)
        errors.show(error)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        log.propagate = propagates
        sys.stdout.flush()
        code = run.tell() or code
    return code


class _Run:
    """Does the parts of `terra run` that need Terra, which is loaded when the script first imports TensorFlow."""

    def __init__(self, options):
        self._options = options
        self.steps = _step_options(options)
        try:
            self._files = [file_to_write(path) for path in (options.timeline, options.report)]
        except errors.OptionError as error:
            raise _Unusable(*error.args) from error
        self._recorded = None
        self._is_loaded = False

    def load(self):
        """Loads Terra, as `launch` wants it."""
        from terra import profile  # (which has all of Terra imported)
        from terra.frontends import keras_support, script
        from terra.runtime.execution import interception

        self._is_loaded = True
        if any(self._files):
            self._recorded = profile(self._files[0], report=self._files[1])
            self._recorded.__enter__()
        script.install(self.steps, keras_support.preparations(self.steps))
        return interception.end_open_step, script.finish

    def discard(self):
        """The script could not be started."""
        self._options.stats = self._options.explain = False
        if self._recorded is not None:
            self._recorded.discard()
            self._recorded = None

    def clean(self, error):
        """Takes Terra's frames out of the traceback of what the script raised; as long as Terra is not loaded, these are only at its beginning."""
        if self._is_loaded:
            from terra.runtime.interpreter import tracebacks

            tracebacks.clean(error)

    def tell(self):
        """Prints and writes what was asked for. Returns an exit code."""
        if self._options.stats:
            print(statistics() if self._is_loaded else _NO_STEPS, file=sys.stderr)
        if self._options.explain and self._is_loaded:
            from terra import explain

            print(explain(full=True), file=sys.stderr)
        elif self._options.explain:
            print(_NO_STEPS, file=sys.stderr)
        return _written(self._recorded) if self._recorded is not None else 0


def _written(recorded):
    """Writes the files of a recording. Returns an exit code: 0, or 2 if that cannot be done, which is said then."""
    try:
        recorded.write()
    except OSError as error:
        print(f"terra run: cannot write {error.filename}: {error.strerror}.", file=sys.stderr)
        return 2
    return 0


def statistics():
    """Gives a table of what happened in all steps, as text."""
    from terra.reporting.explanation import used
    from terra.runtime.step_function.registry import departed

    named = {}  # functions of one name, made anew for each model
    for name, (count, stats) in [*[(f.policy.name, (1, f.stats())) for f in used()], *departed.items()]:
        before, total = named.setdefault(name, (0, Stats()))
        total.add(stats)
        named[name] = before + count, total
    rows = [(name if count == 1 else f"{name} ({count} functions)", stats) for name, (count, stats) in named.items()]
    if not rows:
        return _NO_STEPS
    total = {title: sum(getattr(stats, field) for _, stats in rows) for title, field in _COLUMNS.items()}
    share = 100 * total["co-executed"] / total["steps"]
    lines = [f"terra: {total['steps']} steps, {total['co-executed']} of them co-executed ({share:.0f} %), {total['fallbacks']} fallbacks."]
    lines.append("".join(f"{title:>{max(len(title), 6) + 2}}" for title in _COLUMNS) + "  step")
    for name, stats in rows:
        lines.append("".join(f"{getattr(stats, field):>{max(len(title), 6) + 2}}" for title, field in _COLUMNS.items()) + f"  {name}")
    return "\n".join(lines)


# -- doctor --------------------------------------------------------------------------------------------------------------------

def _doctor(options):
    from terra.reporting import doctor

    text, is_well = doctor.examine()
    print(text)
    return 0 if is_well else 1


# -- code ----------------------------------------------------------------------------------------------------------------------

def _code(options):
    path, _, wanted = options.target.partition(":") if not os.path.exists(options.target) else (options.target, "", "")
    functions = functions_in(path)
    if wanted:
        name = wanted.replace(".<locals>", "")
        if name not in functions:
            close = difflib.get_close_matches(name, functions, n=1) or difflib.get_close_matches(name.rpartition(".")[2], functions, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(functions) or 'none'}."
            raise _Unusable(f"{path} has no function {wanted}; {hint}")
        chosen = [functions[name]]
    else:
        chosen = [f for f in functions.values() if "<locals>" not in f.__qualname__]  # the others are printed as part of these
        if not chosen:
            raise _Unusable(f"{path} has no function.")
    print("\n\n".join(to_code(f).strip("\n") for f in chosen))
    return 0


def functions_in(path):
    """Gives {name: a function with the code, but not the globals, of a function in the file} for all of them. Nothing in the file is run.

    Raises: _Unusable if the file cannot be read, or is not Python.
    """
    try:
        with open(path, "rb") as file:
            module = compile(file.read(), os.path.abspath(path), "exec", dont_inherit=True)
    except OSError as error:
        raise _Unusable(f"cannot read {path}: {error.strerror}.") from None
    except (SyntaxError, ValueError) as error:
        raise _Unusable(f"{path} is not Python: {error}.") from None
    namespace = dict.fromkeys(module.co_names) | {"__name__": "__main__", "__file__": path}
    for name in list(namespace):
        if hasattr(__builtins__, name) if isinstance(__builtins__, types.ModuleType) else name in __builtins__:
            del namespace[name]
    found = {}
    _collect(module, "", "", namespace, found)
    return found


def _collect(code, prefix, qualname, namespace, found):
    for inner in code.co_consts:
        if not isinstance(inner, types.CodeType) or inner.co_name.startswith("<"):
            continue
        name = f"{prefix}{inner.co_name}"
        full = f"{qualname}{inner.co_name}"
        is_function = bool(inner.co_flags & inspect.CO_OPTIMIZED)  # the body of a class is not
        if is_function:
            closure = tuple(types.CellType() for _ in inner.co_freevars)
            function = types.FunctionType(inner, namespace, inner.co_name, None, closure)
            function.__qualname__ = full
            found[name] = function
        _collect(inner, name + ".", full + (".<locals>." if is_function else "."), namespace, found)

