"""Residual calls: calls in a step that are made each time, also where the step is skipped, as they give something else each time.

These are the next element of a `tf.data` iterator, draws of Python's and NumPy's random numbers, and what NumPy calculates of arrays that vary (see `array_calculations`). They are made
beforehand: nothing that a skipped step does could make a difference to them.
What they give takes the place of what was given when the step was recorded, if it is of the same kind. If an element is not (the last batch is smaller), it is put back into its
iterator, and the step runs.
"""

import functools
import random
from typing import NamedTuple

import numpy as np

from terra.location import current_step
from terra.runtime.fast_forward.sources.array_calculations import NOT_STRICTLY, Calculation, strictly
from terra.runtime.fast_forward.sources.number_sources import KINDS, evaluate, number_at
from terra.runtime.tensors.tensor import holds_numbers
from terra.tf import private_names as tfi
from terra.tf import iterators
from terra.tf.private import datasets

EagerTensor = tfi.EagerTensor
_NEXT = frozenset(["__next__", "next", "get_next"])
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_DRAWS = frozenset(
    "random uniform gauss normalvariate expovariate betavariate triangular lognormvariate gammavariate vonmisesvariate paretovariate weibullvariate "
    "rand randn random_sample normal standard_normal randint integers permutation choice beta binomial exponential gamma laplace poisson lognormal chisquare dirichlet f "
    "geometric gumbel hypergeometric logistic logseries multinomial multivariate_normal negative_binomial pareto power rayleigh standard_cauchy standard_exponential "
    "standard_gamma standard_t vonmises wald weibull zipf".split())
_FIXED = frozenset([int, float, bool, type(None), str, type])


class ResidualCall(NamedTuple):
    """A call of an object's method that was made, and what identifies the kind of what it gave."""

    owner: object
    name: str
    args: tuple
    kwargs: tuple
    kind: tuple

    def __eq__(self, other):
        return type(other) is ResidualCall and self.owner is other.owner and self[1:] == other[1:]

    __hash__ = None

    @property
    def size(self):
        """How many tensors, arrays and numbers it gives."""
        return _size(self.kind)

    @property
    def takes(self):
        """Whether it takes an element from an iterator."""
        return type(self.owner) is tfi.OwnedIterator

    @property
    def draws(self):
        return type(self.owner) in _GENERATORS

    def make(self, values, arrays, number):
        return getattr(self.owner, self.name)(*self.args, **dict(self.kwargs))


def takes_element(owner, name):
    """Whether a method takes an element from an iterator of `tf.data`, and it does not matter when: no Python code runs in its pipeline, which uses no variable."""
    if type(owner) is not tfi.OwnedIterator or name not in _NEXT:
        return False
    reach = iterators.reach_of_iterator(owner)
    return reach is not None and not reach.handles


def is_residual(owner, name):
    """Whether a method may be one of these calls."""
    return type(owner) in _GENERATORS and name in _DRAWS or takes_element(owner, name)


def draws(owner, name, args, kwargs):
    """Whether a method draws random numbers of a kind that is known by these arguments."""
    return type(owner) in _GENERATORS and name in _DRAWS and all(map(_is_fixed, (*args, *kwargs.values())))


def may_choose(owner, name):
    """Whether a method draws one of the objects that it is given."""
    return type(owner) is random.Random and name == "choice"


def chooses_objects(name, args):
    """Whether a draw gives an item that is no number."""
    return name == "choice" and bool(args) and type(args[0]) in (tuple, str) and any(type(x) not in KINDS for x in args[0])


def _is_fixed(x):
    return all(map(_is_fixed, x)) if type(x) is tuple else type(x) in _FIXED or isinstance(x, np.dtype)


def flat(value):
    """The tensors, arrays and numbers that a call has given; None if there is anything else."""
    found = []
    return found if _flatten(value, found) else None


def _flatten(value, found):
    kind = type(value)
    if kind is tuple or kind is dict:
        return all(_flatten(x, found) for x in (value.values() if kind is dict else value))
    if kind not in KINDS and not (kind is EagerTensor and not vars(value)) and not (kind is np.ndarray and holds_numbers(value) and value.size):
        return False
    found.append(value)
    return True


def kind_of(value):
    """Returns what identifies the kind of what a call has given."""
    kind = type(value)
    if kind is tuple:
        return kind, *map(kind_of, value)
    if kind is dict:
        return kind, tuple(value), *map(kind_of, value.values())
    if kind is EagerTensor:
        return kind, value._datatype_enum(), value._shape_tuple()
    return (kind, value.dtype, value.shape) if kind is np.ndarray else (kind,)


def _size(kind):
    return sum(map(_size, kind[1 if kind[0] is tuple else 2:])) if kind[0] is tuple or kind[0] is dict else 1


def rebuilt(value, parts):
    """Returns an equal structure with other tensors and numbers, from an iterator."""
    kind = type(value)
    if kind is tuple:
        return tuple([rebuilt(x, parts) for x in value])
    return {key: rebuilt(x, parts) for key, x in value.items()} if kind is dict else next(parts)


class ResidualResults(NamedTuple):
    """Holds what residual calls have given, flat, and what takes them back: (iterator, element), (generator, its state before)."""

    values: list
    taken: list
    states: list

    def undo(self):
        """Takes the calls back."""
        for iterator, element in reversed(self.taken):
            put_back(iterator, element)
        for owner, state in reversed(self.states):  # two may draw from one bit generator
            _set_state(owner, state)


NO_RESULTS = ResidualResults((), (), ())


def run_residual(record, given, arrays):
    """(what the residual calls of a record give, the numbers that vary, see `number_sources.evaluate`), where the step has the arguments `given`, with these arrays among them; None if they are not as they
    were, and it is as if nothing was made.

    The elements of iterators come last, once it is known that the step takes them: what is put back only Python finds in the iterator, no function of TensorFlow's, and no checkpoint.
    """
    if not record.calls:
        numbers = evaluate(record.numbers, given, ())
        return None if numbers is None else (NO_RESULTS, numbers)
    with strictly() if any(type(call) is Calculation for call in record.calls) else NOT_STRICTLY:
        return _run_residual(record, given, arrays)


def _run_residual(record, given, arrays):
    values, made = {}, ResidualResults([], [], [])
    number = functools.partial(number_at, sources=record.numbers, given=given, drawn=values)
    taking, place = [], 0
    for call in record.calls:
        if call.takes:
            taking.append((call, place))
        elif not _make(call, place, made, values, arrays, number):
            return None
        place += call.size
    numbers = evaluate(record.numbers, given, values)
    if numbers is None:
        made.undo()
        return None
    for call, place in taking:
        if not _make(call, place, made, values, arrays, number):
            return None
    made.values.extend(values[k] for k in range(len(values)))
    return made, numbers


def _make(call, place, made, values, arrays, number):
    """Whether a call gives what is of the kind that it was; if not, it is as if none was made."""
    if call.draws and not any(call.owner is owner for owner, _ in made.states):
        made.states.append((call.owner, _state_of(call.owner)))
    try:
        value = call.make(values, arrays, number)
    except BaseException as error:
        if call.takes and not isinstance(error, StopIteration):  # (that comes again)
            put_back(call.owner, None, error)
        made.undo()  # (what is put back last comes first)
        if not isinstance(error, Exception):
            raise
        return False
    if call.takes:
        made.taken.append((call.owner, value))
    if kind_of(value) != call.kind:
        made.undo()
        return False
    values.update(enumerate(flat(value), place))
    return True


def _state_of(owner):
    kind = type(owner)
    return owner.getstate() if kind is random.Random else owner.get_state(legacy=False) if kind is np.random.RandomState else owner.bit_generator.state


def _set_state(owner, state):
    kind = type(owner)
    if kind is random.Random:
        owner.setstate(state)
    elif kind is np.random.RandomState:
        owner.set_state(state)
    else:
        owner.bit_generator.state = state


def put_back(iterator, element, error=None):
    """Makes the iterator give this element once more, or raise that error, before any other."""
    def give():
        if error is not None:
            raise error
        step = current_step.active
        if step is not None and step.is_running_here():
            for x in flat(element) or ():
                if type(x) is EagerTensor:
                    step.data[id(x)] = x
        return element

    datasets.give_next(iterator, give)
