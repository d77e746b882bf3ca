"""Options of `terra.coexecute`, and the statistics it gives back."""

import dataclasses
import difflib
import os

from terra import errors

LOOPS = ("auto", "roll", "unroll")
_WORDS = {"fast_forward": "framework", "reduce_retracing": "auto"}  # option that is True or False -> what it can be besides


@dataclasses.dataclass
class Options:
    """Keyword arguments of `terra.coexecute`.

    run_ahead: how many steps may be in flight after their calls returned; 0 gives errors eager's timing.
    optimize: let grappler rewrite the graph (faster for some programs on accelerators, no longer bitwise equal to eager).
    max_traces: how many distinct traces are merged before new ones are only run imperatively.
    wait_for_graph: a step waits for a graph that is being generated instead of running imperatively meanwhile, and none runs imperatively to compare with.
    jit_compile: let XLA compile the graph as a whole, or its pure stretches, in the background; no longer bitwise equal to eager. The compiled form
        is kept only if steps turn out to be faster with it. Meanwhile the loop of a Keras RNN layer is one operation, unless `loops` is "unroll".
        Steps that are cut into pieces (see `loops`) are not compiled.
    fast_forward: skip code whose outcome is known: the framework's, and functions of the user's that do nothing but compute, keep values in
        attributes, lists, dicts and outer variables, take them up again, count, append, take elements of `tf.data` iterators and draw random numbers.
        With "framework" all of the user's own code runs at each step; with False all of the framework's does, too.
    loops: "unroll" makes every trip count of a loop a path of its own; "roll" rolls a loop as soon as its count has varied; "auto" unrolls
        a loop with one or two counts and rolls the others; arguments whose structure comes again and again get a graph of their own, all unrolled.
    reduce_retracing: sizes of the step's tensor arguments that have varied are unknown to what is recorded, so that code which does not look at them is skipped
        whatever they are. The step's code gets other tensors then, which equal its arguments. "auto" does so as long as a step keeps getting sizes that it has
        not had, and if that pays.
    verify: run each co-executed step both ways, and raise `terra.VerificationError` after a step that would not have been like eager execution. It takes
        longer than that: nothing is skipped, nothing runs ahead.
    transform: instrument the function's source; without it, locations are those of the decorated function alone.
    """

    run_ahead: int = 2
    optimize: bool = False
    max_traces: int = 16
    wait_for_graph: bool = False
    jit_compile: bool = False
    fast_forward: bool | str = True
    loops: str = "auto"
    reduce_retracing: bool | str = "auto"
    verify: bool = False
    transform: bool = True

    @classmethod
    def make(cls, keywords, of="terra.coexecute", others=()):
        """The options of these names; `of`: what was given them; `others`: what that takes besides, which the program may have meant.

        Raises: OptionError for a name that is no option, or a value that it can not have.
        """
        names = {f.name: f.type for f in dataclasses.fields(cls)}
        for name, value in keywords.items():
            if name not in names:
                raise errors.OptionError(unknown(name, of, [*names, *others]))
            word = _WORDS.get(name)
            if word is not None and value == word:
                continue
            expected = bool if word is not None else type(getattr(cls, name))
            if type(value) is not expected or (expected is int and value < 0):
                wanted = f"True, False or {word!r}" if word is not None else "a whole number from 0 on" if expected is int else f"a {expected.__name__}"
                raise errors.OptionError(f"terra.coexecute's option {name!r} takes {wanted}, not {value!r}.")
        if keywords.get("loops", "auto") not in LOOPS:
            raise errors.OptionError(f"terra.coexecute's option 'loops' is one of {', '.join(map(repr, LOOPS))}, not {keywords['loops']!r}.")
        return cls(**keywords)


COUNTERPARTS = {  # what other libraries call an option -> what there is in Terra
    "input_signature": "a step takes any arguments; if their sizes vary, reduce_retracing=True keeps what is known of the step",
    "autograph": "Python runs as Python, so there is nothing to convert; leave it out",
    "fullgraph": "terra.set_stance('fail_on_fallback') makes it an error that a step leaves its graph",
    "jit": "jit_compile=True lets XLA compile the graph",
    "experimental_compile": "jit_compile=True lets XLA compile the graph",
    "backend": "jit_compile=True lets XLA compile the graph, optimize=True has TensorFlow rewrite it",
    "mode": "jit_compile=True lets XLA compile the graph, optimize=True has TensorFlow rewrite it",
    "dynamic": "reduce_retracing=True leaves sizes unknown that vary",
    "experimental_relax_shapes": "reduce_retracing=True leaves sizes unknown that vary",
    "experimental_follow_type_hints": "reduce_retracing=True leaves sizes unknown that vary",
    "static_argnums": "Python values are told apart by themselves; leave it out",
    "run_eagerly": "terra.set_stance('imperative') runs all steps eagerly",
    "disable": "terra.set_stance('imperative') runs all steps eagerly",
}


def unknown(name, of, names):
    """Returns what to say of an option that `of` does not have; `names`: those that it has."""
    if name in COUNTERPARTS:
        return f"{of} has no option {name!r}: {COUNTERPARTS[name]}."
    close = difflib.get_close_matches(name, names, n=1)
    return f"{of} has no option {name!r}; " + (f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(sorted(names))}.")


_FIRST = ("steps", "tracing_steps", "coexecuted_steps", "imperative_steps", "traces", "graphs", "fallbacks", "feeds", "fetches", "python_stall_s")  # what users look at first


@dataclasses.dataclass(repr=False)
class Stats:
    """Counts of what happened so far; `steps == tracing_steps + coexecuted_steps + imperative_steps`.

    A step that fell back counts as tracing and as a fallback. `fast_forwards` counts calls that were skipped, `whole_steps` the steps among them:
    co-executed without running the step's own code; `express_steps` are those of them that needed no skeleton at all. Of the co-executed steps,
    `early_steps` counts those whose graph started with the step (because Python reads values in its middle, or because steps proved to be shorter
    so), `waited_steps` those whose graph ran on Python's own thread (because Python had waited for the steps before as soon as they were dispatched),
    `compiled_steps` those that XLA's compiled code ran (`jit_compile`), `single_threaded_steps` those whose operations ran one after another on one
    thread (because steps proved to be shorter so). `rolled_loops` are the loops whose trip count varies and whose iterations therefore share a graph,
    `pieces` the parts that steps are cut into for that (and at recursive calls), each with a graph of its own; `recurrent_layers` the RNN layers of
    Keras whose loop over time varies, or is compiled by XLA, and is one operation of the graph instead; `recurring_steps` are the co-executed steps
    that were not cut, because arguments of the same structure had come again and again. `walked_calls` counts calls of the framework's that could
    not be skipped, but were replaced by calls of their parts. `verified_calls` and `verified_graphs` count what `verify`
    has run both ways: calls that would have been skipped, and graphs. Times are in seconds: `python_stall_s` is what Python waited for the graph (for a
    fetch, or because too many steps were in flight), `generation_s` what generating and instantiating graphs took (in a helper thread).
    """

    steps: int = 0
    tracing_steps: int = 0
    coexecuted_steps: int = 0
    imperative_steps: int = 0
    traces: int = 0
    graphs: int = 0
    fallbacks: int = 0
    feeds: int = 0
    fetches: int = 0
    fast_forwards: int = 0
    whole_steps: int = 0
    express_steps: int = 0
    early_steps: int = 0
    single_threaded_steps: int = 0
    waited_steps: int = 0
    rolled_loops: int = 0
    pieces: int = 0
    recurrent_layers: int = 0
    recurring_steps: int = 0
    compiled_steps: int = 0
    walked_calls: int = 0
    verified_calls: int = 0
    verified_graphs: int = 0
    python_stall_s: float = 0.0
    generation_s: float = 0.0

    @property
    def details(self):
        """The figures beside those of the first nine fields and of what Python waited: how steps were run, as {name: figure}."""
        return {name: value for name, value in vars(self).items() if name not in _FIRST}

    def __repr__(self):
        return f"Stats({', '.join(f'{name}={getattr(self, name)!r}' for name in _FIRST)}, details={self.details!r})"

    def add(self, other):
        """Add the figures of `other` to these."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def file_to_write(path):
    """Returns the absolute path of a file that is to be written in the end: the program may go to another directory. None for None. Raises: OptionError if it cannot be there."""
    if path is None:
        return None
    found = os.path.abspath(path)
    if not os.path.isdir(os.path.dirname(found)):
        raise errors.OptionError(f"cannot write {os.fspath(path)}: there is no directory {os.path.dirname(found)}.")
    if os.path.isdir(found):
        raise errors.OptionError(f"cannot write {os.fspath(path)}: it is a directory.")
    return found
