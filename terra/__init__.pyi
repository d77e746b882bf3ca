"""The types of what users touch. `tests/frontends/test_types.py` compares the names and fields with those that there are."""

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypedDict, TypeVar, overload

from typing_extensions import Unpack

from terra.errors import DecorationError as DecorationError
from terra.errors import FallbackError as FallbackError
from terra.errors import GenerationError as GenerationError
from terra.errors import OptionError as OptionError
from terra.errors import TerraError as TerraError
from terra.errors import UnsupportedTensorFlowError as UnsupportedTensorFlowError
from terra.errors import VerificationError as VerificationError

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_R = TypeVar("_R", covariant=True)
_S = TypeVar("_S")
_F = TypeVar("_F", bound=Callable[..., Any])

__version__: str
__all__: list[str]

class _Options(TypedDict, total=False):
    run_ahead: int
    optimize: bool
    max_traces: int
    wait_for_graph: bool
    jit_compile: bool
    fast_forward: bool | Literal["framework"]
    loops: Literal["auto", "roll", "unroll"]
    reduce_retracing: bool
    verify: bool
    transform: bool

class Options:
    run_ahead: int
    optimize: bool
    max_traces: int
    wait_for_graph: bool
    jit_compile: bool
    fast_forward: bool | Literal["framework"]
    loops: Literal["auto", "roll", "unroll"]
    reduce_retracing: bool
    verify: bool
    transform: bool
    def __init__(self, **options: Unpack[_Options]) -> None: ...
    @classmethod
    def make(cls, keywords: _Options) -> Options: ...

class Stats:
    steps: int
    tracing_steps: int
    coexecuted_steps: int
    imperative_steps: int
    traces: int
    graphs: int
    fallbacks: int
    feeds: int
    fetches: int
    fast_forwards: int
    whole_steps: int
    express_steps: int
    early_steps: int
    single_threaded_steps: int
    waited_steps: int
    rolled_loops: int
    pieces: int
    recurrent_layers: int
    recurring_steps: int
    compiled_steps: int
    verified_calls: int
    verified_graphs: int
    python_stall_s: float
    generation_s: float
    @property
    def details(self) -> dict[str, int | float]: ...
    def add(self, other: Stats) -> None: ...

class Coexecuted(Generic[_P, _R]):
    __wrapped__: Callable[_P, _R]
    __name__: str
    __qualname__: str
    options: Options
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    @overload
    def __get__(self, instance: None, owner: type[Any] | None = ...) -> Coexecuted[_P, _R]: ...
    @overload
    def __get__(self: Coexecuted[Concatenate[_S, _Q], _R], instance: _S, owner: type[Any] | None = ...) -> Coexecuted[_Q, _R]: ...
    def stats(self) -> Stats: ...
    def run_graph_alone(self, *args: _P.args, **kwargs: _P.kwargs) -> None: ...
    @property
    def trace_graph(self) -> Any: ...
    @property
    def graph(self) -> Any: ...

class Explanation(str):
    @property
    def causes(self) -> list[Any]: ...
    def to_dict(self) -> dict[str, Any]: ...

class KerasSteps:
    model: Any
    active: bool
    train: Coexecuted[..., Any]
    test: Coexecuted[..., Any]
    predict: Coexecuted[..., Any]
    def stats(self) -> dict[str, Stats]: ...
    def undo(self) -> None: ...
    def __enter__(self) -> KerasSteps: ...
    def __exit__(self, *exc: object) -> None: ...

class GradientTape:
    def __init__(self, persistent: bool = ..., watch_accessed_variables: bool = ..., **options: Unpack[_Options]) -> None: ...
    def __enter__(self) -> GradientTape: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def watch(self, tensor: Any) -> None: ...
    def gradient(self, target: Any, sources: Any, output_gradients: Any = ..., unconnected_gradients: Any = ...) -> Any: ...
    def jacobian(self, target: Any, sources: Any, unconnected_gradients: Any = ..., parallel_iterations: Any = ..., experimental_use_pfor: bool = ...) -> Any: ...
    def batch_jacobian(self, target: Any, source: Any, unconnected_gradients: Any = ..., parallel_iterations: Any = ..., experimental_use_pfor: bool = ...) -> Any: ...
    def stop_recording(self) -> contextlib.AbstractContextManager[None]: ...
    def reset(self) -> None: ...
    def watched_variables(self) -> Any: ...
    @property
    def block(self) -> Coexecuted[..., Any] | None: ...

class set_stance:
    def __init__(self, stance_: Literal["default", "imperative", "fail_on_fallback"]) -> None: ...
    def __enter__(self) -> set_stance: ...
    def __exit__(self, *exc: object) -> None: ...

class _Imperative:
    def __enter__(self) -> _Imperative: ...
    def __exit__(self, *exc: object) -> Literal[False]: ...
    def __call__(self, function: _F) -> _F: ...

@overload
def imperative() -> _Imperative: ...
@overload
def imperative(function: _F) -> _F: ...
@overload
def coexecute(fn: Callable[_P, _R], /, **options: Unpack[_Options]) -> Coexecuted[_P, _R]: ...
@overload
def coexecute(fn: None = ..., /, **options: Unpack[_Options]) -> Callable[[Callable[_P, _R]], Coexecuted[_P, _R]]: ...
def compile(model: Any, *args: Any, **keywords: Any) -> KerasSteps: ...
def explain(function: Any = ..., *, full: bool = ...) -> Explanation: ...
def sync() -> None: ...
def to_code(function: Callable[..., Any]) -> str: ...
