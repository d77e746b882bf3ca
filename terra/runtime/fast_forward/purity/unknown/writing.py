"""The observer's part for functions of TensorFlow's that write (see `sites.writers`): each is an opaque call behind the graph, which gives what the state of the summaries says."""

import contextlib
import weakref
from types import MethodType
from typing import Any, Callable

from terra import ours
from terra.runtime.fast_forward.sites.writers import Writer, aside, changed, containers, leaves
from terra.runtime.fast_forward.sources.opaque_calls import Behind, Held, outcomes
from terra.runtime.tensors.comparing import Unskippable
from terra.tf import private_names as tfi

_GUARDED = ("writer", "is_recording", "is_recording_distribution_strategy")  # what says whether a summary is written, and to where
_state = tfi.summary_state


class Writing:
    """The calls of one run that write."""

    def __init__(self, run: Any):
        self._of = weakref.ref(run)
        self._entered: list[tuple[Any, Any]] = []  # (writer, number of the step or None) of the contexts that the run is in

    @ours.calling
    def call(self, writer: Writer, /, *args: Any, **kwargs: Any) -> Any:
        """Calls one of these functions."""
        run, reason = self._of(), f"calls {writer.__qualname__}"
        if not tfi.executing_eagerly():
            return run.functionals.in_graph(writer, args, kwargs)
        scope, entered = tfi.get_name_scope(), self._entered[-1][0] if self._entered else None
        made = _Write(writer, entered, scope) if entered is not None or scope else writer
        taken = writer.taken(args, kwargs, run.calls.builtin(tfi.tf.convert_to_tensor)) if run.reason is None and run.may_read_late else None
        if taken is None or not self._guard(writer, args, kwargs):
            run.impure(f"{reason}, which writes something")
            outcome = outcomes.take(made)
            return writer(*args, **kwargs) if outcome is None else outcome.give()
        for x in containers((*args, *kwargs.values())):
            if not run.born.has(x):
                run.contents.look_into(x)
                if type(x) is dict:
                    run.contents.keys(x)
        for x in leaves(taken):
            run.library_code.reads(x)
        length = len(run.runner.read_twice)
        outcome, run.is_inside_opaque = outcomes.take(made), True
        try:
            value = writer.write(run.runner.step, *taken) if outcome is None else outcome.give()
        except Exception:
            run.impure(f"{reason}, which raises")
            raise
        finally:
            run.is_inside_opaque = False
        del run.runner.read_twice[length:]
        return self._note(made, *taken, value, reason)

    def _note(self, made: Any, args: list, kwargs: dict, value: Any, reason: str) -> Any:
        run = self._of()
        if run.reason is not None:
            return value
        try:
            parts = Held(made), changed(run.opaque.part, args), changed(run.opaque.part, kwargs)
        except Unskippable as error:
            run.impure(f"{reason}, which is given {error}")
            return value
        run.opaque.note(made, parts, None, (made.__name__, None), None, True, False, reason, args, kwargs, keeps_guards=True)
        return value

    def _guard(self, writer: Writer, args: tuple, kwargs: dict) -> bool:
        """Notes the state on which it depends what the function gives; returns whether it is all plain."""
        run = self._of()
        if not writer.writes_summaries:
            return True
        for name in _GUARDED:
            value = getattr(_state, name)
            if name == "writer" and self._entered:
                continue
            if name != "writer" and type(value) not in (bool, type(None)):
                return False
            run.reads.asked(_ASKED[name], _state, value)
        if writer.is_without_step(args, kwargs) and not self._is_in_numbered() and tfi.is_variable(_state.step):
            run.reads.asked(_ASKED["step"], _state, _state.step)
        return True

    def _is_in_numbered(self) -> bool:
        return any(step is not None for _, step in self._entered)

    @staticmethod
    def knows(method: MethodType) -> bool:
        """Whether it is one of the methods of TensorFlow's writers of summaries that are here, too."""
        return isinstance(method.__self__, tfi.SummaryWriter) and method.__name__ in ("as_default", "flush")

    @ours.calling
    def as_default(self, method: MethodType, /, step: Any = None) -> Any:
        """Calls `as_default` of a writer of summaries."""
        if step is not None and not tfi.is_variable(step):
            self._of().impure("enters a context of summaries with a number")
        return DefaultWriter(self, method.__self__, step, method(step))

    def enters(self, writer: Any, step: Any) -> None:
        self._entered.append((writer, step))

    def leaves(self, leave: Callable) -> None:
        writer, _ = self._entered.pop()
        self._flush(writer, leave)

    @ours.calling
    def flush(self, method: MethodType) -> Any:
        """Calls `flush` of a writer of summaries."""
        return self._flush(method.__self__, method)

    def _flush(self, writer: Any, how: Callable) -> Any:
        outcome = outcomes.take(FLUSH)
        value = aside(self._of().runner.step, how)  # once more, if that was done already: nothing changes by that
        return self._note(FLUSH, [writer], {}, value if outcome is None else outcome.give(), "flushes summaries")


class DefaultWriter:
    """Entered in place of the context in which a writer of summaries is the default one."""

    __slots__ = ("_writing", "_writer", "_step", "_context")

    def __init__(self, writing: Writing, writer: Any, step: Any, context: Any):
        self._writing, self._writer, self._step, self._context = writing, writer, step, context

    def __enter__(self) -> Any:
        self._writing.enters(self._writer, self._step)
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> Any:
        self._writing.leaves(lambda: self._context.__exit__(*error))


class _Flush(Behind):
    """Flushes a writer of summaries."""

    __slots__ = ()
    __name__, writes_summaries = "flush", True

    def __call__(self, writer: Any) -> None:
        writer.flush()


FLUSH = _Flush()


class _Write(Behind):
    """Calls a `Writer` in the contexts that the step had entered: of a writer of TensorFlow's (or None), and of names."""

    __slots__ = ("_writer", "_to", "_scope", "__name__")

    def __init__(self, writer: Writer, to: Any, scope: str):
        self._writer, self._to, self._scope, self.__name__ = writer, to, scope, writer.__name__

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Write and other._writer is self._writer and other._to is self._to and other._scope == self._scope

    __hash__ = None

    @property
    def writes_summaries(self) -> bool:
        return self._writer.writes_summaries

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        before = _state.writer
        try:
            if self._to is not None:
                _state.writer = self._to
            with tfi.tf.name_scope(f"{self._scope}/") if self._scope else contextlib.nullcontext():
                return self._writer(*args, **kwargs)
        finally:
            _state.writer = before


def _asked(name: str) -> Callable:
    return lambda state: getattr(state, name)


_ASKED = {name: _asked(name) for name in (*_GUARDED, "step")}
