"""Keeps what came of observing calls at one place: how often, why not, and what was recorded."""

from types import FunctionType

from terra.runtime.fast_forward.cache import call_cache
from terra.runtime.fast_forward.cache.call_records import RecordVariants
from terra.runtime.fast_forward.sources.number_sources import StorageSource, differ
from terra.runtime.fast_forward.steps.observed_runs import renewed_object
from terra.runtime.interpreter.integers import CAN_BE_MADE, is_shared
from terra.trial import is_power

_MOST_TRIES = 8  # observations at one place without a jump in between, before it is given up
_MOST_PASSING = 4  # the same of those that failed for a reason that passes, and do not count as tries
_MOST_VARIED = 4  # times that numbers are found to vary without a jump in between: those of objects that are made anew always are others
_GROWING = 4  # calls in a row with growing integers, after which that is believed


class PurityTrial:
    """Holds what came of observing at one place, with arguments of these shapes: where there are many, each is new to the framework's calls at first."""

    __slots__ = ("name", "visits", "next", "early", "fruitless", "row", "jumped_before", "tries", "passing", "reason", "variants", "jumps", "carried", "numbers", "integers", "constants", "seen", "varied", "parameters",
                 "given", "growing", "renewed", "line")

    def __init__(self, called):
        self.parameters = called.__code__.co_varnames[:called.__code__.co_argcount] if type(called) is FunctionType else ()
        self.name = called.__qualname__ if type(called) is FunctionType else f"{type(called.layer).__name__}.call"
        self.visits = 0
        self.next = 2  # the first visit records what the framework does
        self.early = 0  # calls before which a part of it cannot be skipped
        self.fruitless = 0  # observations without success since the last one that had some
        self.row = self.jumped_before = 0  # visits in a row without a jump in between; jumps before the last one
        self.tries = 0
        self.passing = 0  # observations without a jump in between that failed for a reason that passes
        self.renewed = None  # what was another object each time, where that is why it was given up
        self.reason = self.line = None  # why the last run was impure, and in which line of the step's own function
        self.variants = {}  # signature -> records
        self.jumps = 0
        self.carried = {}  # (id of an object, name) -> `effects.StateInput`, whose contents are arguments, too
        self.numbers = {}  # identity -> `number_sources.StorageSource` of the numbers that vary, which are arguments, too
        self.integers = {}  # the same of integers, which are not: only what is asked about, or calculated of, them counts
        self.constants = set()  # identities of numbers that were looked at: each value is another call
        self.seen = {}  # identity -> (`StorageSource`, value) of the numbers that the last run which was observed was given, or has read
        self.varied = 0  # how often numbers were found to vary since the last jump
        self.given = {}  # position -> integer, of those among the arguments of the last call
        self.growing = 0  # calls in a row of which each was given a larger integer than the one before, which is small, and not known to vary

    @property
    def given_up(self):
        return self.tries >= _MOST_TRIES

    def is_due(self, arguments):
        self.visits += 1
        if self.given_up:
            return False
        before, self.given = self.given, {k: x for k, x in enumerate(arguments) if type(x) is int}
        grown = [k for k, x in self.given.items() if before[k] < x and is_shared(x) and (id(None), k) not in self.numbers] if before.keys() == self.given.keys() else ()
        self.growing = self.growing + 1 if grown else 0
        if self.growing == _GROWING and CAN_BE_MADE and not any((id(None), k) in self.constants for k in grown):
            tries, self.growing = self.tries, 0
            self.vary([(StorageSource(None, k, int), self.given[k]) for k in grown])
            self.tries = tries  # they may not be why it failed
        self.row, self.jumped_before = self.row + 1 if self.jumps == self.jumped_before else 1, self.jumps
        is_moment = self.visits >= self.next and self.visits + self.jumps >= self.early
        return (is_moment or (self.jumps > 0 and is_power(self.row))) and self.growing < _GROWING  # or records that were good for others are no more

    def _tried(self):
        self.tries += 1
        if self.given_up:
            self.renewed = renewed_object(self)
            self.variants.clear()

    def changed(self, numbers):
        """[(Place, value)] of the numbers that were others the last time, or that the run itself has changed, if it is not known that they vary.

        `numbers`: those that a run was given, or has read, [(Place, value)].
        """
        if self.varied >= _MOST_VARIED:
            return []
        known, self.seen = self.seen, {place.identity: (place, value) for place, value in numbers}
        return [
            (place, value) for identity, (place, value) in self.seen.items()
            if identity not in self.constants and identity not in self.numbers and identity not in self.integers
            and ((identity in known and differ(known[identity][1], value)) or (place.holder is not None and differ(place.value(()), value)))]

    def vary(self, numbers):
        """Makes these numbers count as arguments from now on."""
        for place, value in numbers:
            (self.integers if type(value) is int and place.holder is not None else self.numbers)[place.identity] = place
        self.varied += 1
        self.variants.clear()
        self.tries, self.next = 0, self.visits + 1

    def take_for_constants(self, places):
        """Numbers that a run has looked at."""
        for place in places:
            self.constants.add(place.identity)
            self.numbers.pop(place.identity, None)

    def failed(self, run, carries):
        self.reason, self.line = run.reason, run.line
        if carries:
            self.carried.update((carried.key, carried) for carried in carries)
            self.variants.clear()
        if run.too_early:
            self.next, self.early = self.visits + 1, self.visits + self.jumps + run.too_early
            return
        if run.passing and self.passing < _MOST_PASSING:  # it is recorded in between, which may take a while; or a call took long for once
            self.passing += 1
            self.next = self.visits + 2
            return
        self._tried()
        self.fruitless += 1
        self.next = self.visits + (1 << min(max(self.tries, self.fruitless), _MOST_TRIES))

    def learned(self, signature, record):
        self.next = self.visits + 1
        self.fruitless = 0
        variants = self.variants.setdefault(signature, RecordVariants())
        variants.learn(record)
        if not record.depends_on_values:
            self._tried()
        if variants.is_hopeless:
            self.tries = _MOST_TRIES
        if len(self.variants) > call_cache.MOST_SIGNATURES:
            del self.variants[next(iter(self.variants))]

    def all_variants(self):
        return self.variants.values()

    def jumped(self):
        self.jumps += 1
        self.tries = self.varied = self.passing = 0
