"""Finders of what keeps the Python code of a step, or of functions that it calls, from being skipped."""

import re

from terra.graph.trace import ARG
from terra.reporting import places
from terra.reporting.causes import Cause, a_few, plural
from terra.reporting.facts import line_of
from terra.tf import opschema
from terra.transform import policy

_ENOUGH = 0.6  # of the steps that are co-executed are skipped: what keeps the others from it costs little
_PRINTS = re.compile(r"\b(print|pprint|write|log|debug|info|warning|warn|error|critical|exception|echo|display)\b")
_RUNS_PYTHON = re.compile(r"\b(eager_py_func|py_function|numpy_function|py_func|_internal_py_func)\b")
_FOLLOWS = re.compile(r"of the framework's, which was not skipped|in a call that was not skipped|does what could not be skipped|left the known paths")  # from other causes
_CALLED = re.compile(r"^(?:calls|issues) (\S+?),? (?:of the framework's|in a call)")
_CALLS = re.compile(r"(?:calls|asks a tensor for) (\w+)")
_OF_VALUES = re.compile(r"asks a tensor for (numpy|__array__|__float__|__int__|__bool__)|reads the value of a tensor|reads numbers|reads values that it|makes? a text of a tensor|formats a shape")
_WITHIN = "do more than compute: it "  # behind it comes what code of the program's does that the framework has called
_OF_USERS = "functions of the user's that do more than compute"
_UNSEEN = re.compile(r"^(\S+) \((.*?)([^/\\]*:\d+)\) is called by the framework and was not observed")
_FETCHED = re.compile(r"reads numbers, which|reads the value of a tensor|reads values that it")  # by what it calls, as a rule
_DRAWS = re.compile(r"^calls (Generator|RandomState|Random)\.")
_CONTAINER = re.compile(r"keeps a tensor in a container|calls (Tracked)?(List|Dict|Set|list|dict|set|deque)\.\w+, which is given a tensor")
_GIVEN = "an object that code gave which Terra cannot look into"
_UNKNOWN = re.compile(r"^calls (\S+?),? of the framework's, which is not known to do nothing but compute")
_OUTSIDE = ("print", "scalar", "histogram", "image", "text", "write_file", "py_function", "numpy_function")  # TensorFlow's operations that no graph has, by their functions' names
_MAKES = re.compile(r"(makes|returns|gives) an object of type (\w+)")
_NUMBERS = re.compile(r"u?int\d*|float\d*|bool_?")


def find(facts):
    """The causes because of which Python code runs that could be skipped otherwise."""
    causes = _calls_of_python(facts)
    if facts.skipped >= _ENOUGH:
        return causes + _printed(facts)
    reasons = _reasons(facts)
    for (text, line), names in reasons.items():
        if facts.waits and (line is None or _FETCHED.search(text)):
            continue  # it follows from what is read, as a rule, which is a cause of its own
        unseen = _UNSEEN.match(text)
        if unseen:
            if _is_elsewhere(unseen[2] + unseen[3]):
                continue  # a library's, which the framework has called once
            text, line = f"gives the framework {unseen[1]}, whose source cannot be read, and which it calls", unseen[3]
        if not _FOLLOWS.search(text) and not any(cause.line == line for cause in causes):
            causes.append(_cause_of(facts, text, line, names))
    return causes + _renewed(facts) + _printed(facts)


def _is_elsewhere(place):
    """Returns whether a line, `path:12`, is a library's."""
    return not policy.is_user_module("", place.rpartition(":")[0])


def _reasons(facts):
    """{(reason, line): names of the functions that run because of it}: the step's own first."""
    found = {}
    if facts.whole is not None and facts.whole.reason is not None and not facts.whole.variants:
        found.setdefault(places.split(facts.whole.reason), []).append(facts.name.rpartition(".")[2])
    for name, _, reason in facts.trials:
        names = found.setdefault(places.split(reason), [])
        short = name.replace("<locals>.", "").rpartition(".")[2] if not name.endswith(".call") else name
        if short not in names:
            names.append(short)
    for name, _, reason in facts.unskipped:
        within = reason.partition(_WITHIN)[2]
        if within:
            found.setdefault(places.split(within), []).append(name)
    return found


def _cause_of(facts, text, line, names):
    called = _CALLS.match(text)
    if line is None and called:
        line = places.call_of(called[1], facts.line)
    text = in_plain_words(text)
    ms, statement = facts.python_ms, places.statement(line)
    if facts.whole is not None and facts.whole.reason is not None and len(names) == 1 and names[0] != facts.name.rpartition(".")[2]:
        ms = None  # how much of the step it is nobody knows
    who, where = a_few(names), line or facts.line
    here = f"{who} {text}, and {'runs' if len(names) == 1 else 'run'} as Python in each step because of that"
    if "profiler" in text:
        return Cause("T11", where, here, "start it when the steps have run some 20 times, or use cProfile or pyinstrument", ms, 19.0, statement)
    if _CONTAINER.search(text):
        return Cause("T12", where, here, "give the tensor back, and put it into the container behind the step", ms, 14.0, statement)
    if _OF_VALUES.search(text):
        return Cause("T02", where, here, "read it behind the step", ms, 13.0, statement)
    if "runs some operations imperatively" in text:
        line = line or next(filter(None, (places.call_of(name, facts.line) for name in _OUTSIDE)), None)
        where, prints = line or facts.line, "print(" in (places.statement(line) or "")
        return Cause("T05" if prints else "T06", where, f"{who} runs an operation that no graph has (output, files, queues, Python), and runs as Python in each step because of that",
                     "print or log behind the step, every so many steps" if prints else "run it behind the step", ms, 13.0, places.statement(line))
    if _RUNS_PYTHON.search(text):
        return Cause("T06", where, here, _REWRITE, ms, 15.0, statement)
    if (text.startswith("calls ") and _PRINTS.search(text)) or "write something" in text:
        return Cause("T05", where, here, "print or log behind the step, every so many steps", ms, 12.0, statement)
    if "raises an exception" in text:
        return Cause("T08", where, here, "give back what tells that something is wrong, and raise behind the step", ms, 11.0, statement)
    unknown = _UNKNOWN.match(text)
    if unknown:
        return Cause("T14", where, f"{unknown[1]} is no function that is known to do nothing but compute, and {who} {'runs' if len(names) == 1 else 'run'} as Python in each step because of that",
                     "use a function of tf, tf.math, tf.nn, tf.image, tf.raw_ops or keras.ops in its place, or call it before the step", ms, 10.0, statement)
    if _GIVEN in text:
        return Cause("T09", where, here, "make the object that is used here once, before the first step", ms, 10.0, statement)
    if line is None:
        return Cause("T09", facts.line, here, "give tensors and numbers back, and keep other objects out of the step", ms, 3.0)
    made = _MAKES.search(text)
    if _DRAWS.search(text):
        return Cause("T09", where, here, "draw before the step, and give the step a tensor of what was drawn; or draw with tf.random", ms, 10.0, statement)
    if made and _NUMBERS.fullmatch(made[2]):
        return Cause("T09", where, here, "compute the number before the step, and give it to the step as a tensor", ms, 10.0, statement)
    if made:
        return Cause("T09", where, here, f"make the {made[2]} once, before the first step, or behind the step", ms, 10.0, statement)
    return Cause("T09", where, here, "move this statement out of the step", ms, 10.0, statement)


_REWRITE = "write it with TensorFlow's operations, or call it before the step and give the step what it returns"


def _calls_of_python(facts):
    """`tf.py_function` and the like: they are fed to the graph."""
    found = {}
    for name, line, why in facts.unskipped:
        if _RUNS_PYTHON.search(name):
            found[line] = f"a Python function runs as an operation in each step ({name}), and the graph is given what it returns"
    return [Cause("T06", line, seen, _REWRITE, facts.python_ms, 15.0, places.statement(line)) for line, seen in found.items()]


def _printed(facts):
    """Calls that print or log and are made in each step, also when it is skipped."""
    found = {}
    for record in facts.records:
        for call in record.opaque or ():
            name, where, *_ = call.key  # (of the others, the number that is read)
            if type(where) is tuple and _PRINTS.search(name):
                found[places.brief(*where)] = name
    return [Cause("T05", line, f"{name} is called in each step", "print or log behind the step, every so many steps", _SMALL, 0.0, places.statement(line)) for line, name in found.items()]


_SMALL = 0.01  # ms: what calls cost that are made while the step is skipped


def _renewed(facts):
    """Objects that are others in each step."""
    trial = facts.whole
    if trial is None or not trial.renewed or trial.variants:
        return []
    what, where = trial.renewed
    return [Cause("T13", where or facts.line, f"{what} is another one in each step, so what is known of the step does not hold for the next one",
                  "make it once, and change its attributes; or give the step its tensors as arguments", facts.python_ms, 16.5, places.statement(where))]


def operation_by_operation(facts, is_explained=False):
    """The framework's calls that are not skipped: the cause where nothing else explains why the step is not. is_explained: whether something else may."""
    if facts.skipped >= _ENOUGH:
        return []
    found = {}
    if facts.whole is not None and facts.whole.reason is not None:
        text, line = places.split(facts.whole.reason)
        called = _CALLED.search(text)
        found[line] = (called[1], "is not known for what it is given", 0) if called else ("what is called here", in_plain_words(text), 0)
    for name, line, why in facts.unskipped:
        if not found and not _FOLLOWS.search(why) and _WITHIN not in why and not (is_explained and (why.endswith(_OF_USERS) or places.is_librarys(line))):
            found[line] = name, in_plain_words(why), len(facts.unskipped) - 1
    return [Cause("T14", line or facts.line, f"{name} {why}, and runs operation by operation" + (f"; so do {plural(others, 'other call')}" if others else ""),
                  _remedy_at(facts, line), facts.python_ms, 8.0,
                  places.statement(line)) for line, (name, why, others) in found.items()]


def _remedy_at(facts, line):
    """Returns what to change where a call of the framework's is not skipped."""
    for node in facts.nodes:
        for k, kind in enumerate(node.payload.kinds):
            if line_of(node) == line and kind[0] == ARG and opschema.HOST_KNOWN_ENUMS.intersection(kind[2:3]) and all(len(key) > k and key[k] == () for key in node.payload.shapes if type(key) is tuple):
                called = f" ({facts.parameters[kind[1]]})" if kind[1] < len(facts.parameters) else ""
                return f"compute with float32 tensors here, as Python looks at small whole numbers{called}, or do it before the step"
    return "make what it is given once, before the first step"


def in_plain_words(reason):
    """A reason without words that only mean something inside of Terra."""
    return reason.replace("what unknown code gives", _GIVEN).replace("unknown code", "code that Terra cannot look into")

