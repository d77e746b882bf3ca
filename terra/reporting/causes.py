"""The reasons why steps are slower than they could be: each has a code, under which docs/performance.md describes it, and a title."""

import dataclasses

TITLES = {
    "T01": "sizes change",
    "T02": "a value is read",
    "T03": "a Python number changes",
    "T04": "a branch goes one way or another",
    "T05": "something is printed or logged",
    "T06": "Python code runs as an operation",
    "T07": "the step does something new again and again",
    "T08": "the step raises",
    "T09": "a statement must run at each step",
    "T10": "a block is not a function",
    "T11": "a profiler or a debugger looks on",
    "T12": "a list grows",
    "T13": "an object is a new one in each step",
    "T14": "a call of the framework runs operation by operation",
    "T15": "there can be no graph",
    "T16": "the step runs where nothing is co-executed",
    "T17": "there is nothing to win",
    "T18": "an option switches speed off",
    "T19": "a loop runs another number of times each time",
}


FIRST = 1e6  # weight of what keeps a step from being co-executed at all


LITTLE = "costs little"


@dataclasses.dataclass(frozen=True)
class Cause:
    """One reason why a step function is slower than it could be."""

    code: str  # of TITLES
    line: str | None  # of the program, `file.py:12`
    seen: str  # what was seen there
    remedy: str  # what to change
    ms: float | None = None  # of a step that it costs at most; None where that is not known
    weight: float = 0.0  # by which those are put in order that cost the same, or of which no time is known
    statement: str | None = None  # the source at the line

    @property
    def title(self) -> str:
        return TITLES[self.code]

    @property
    def cost(self) -> str:
        """Its cost, in words; empty where that is not known."""
        return "" if self.ms is None else f"up to {amount(self.ms)} ms a step" if self.ms >= 0.05 else LITTLE

    def to_dict(self) -> dict:
        """The fields, as plain values."""
        return {"code": self.code, "title": self.title, "line": self.line, "statement": self.statement, "seen": self.seen, "remedy": self.remedy, "ms_per_step": self.ms}


def in_order(causes: list) -> list:
    """Returns first what keeps a step from being co-executed at all, then those that cost most, then those of which that is not known."""
    return sorted(causes, key=lambda cause: (cause.weight < FIRST, cause.ms is None, -round(cause.ms or 0.0, 2), -cause.weight, cause.code))


def plural(count: int, one: str, more: str | None = None) -> str:
    """`1 step`, `2 steps`."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def a_few(items, most: int = 3) -> str:
    """The first ones, and how many more there are."""
    items = list(dict.fromkeys(items))
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def amount(number: float) -> str:
    """A number with two figures, never as a power of ten: 0.42, 9.8, 23, 130."""
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"
