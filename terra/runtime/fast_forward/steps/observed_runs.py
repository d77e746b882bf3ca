"""A run of the program's own code that is observed: whether it does nothing but compute, and the record of it."""

import os
import sys
from typing import NamedTuple

from terra.runtime.fast_forward.cache import verification
from terra.runtime.fast_forward.cache.arguments import is_held
from terra.runtime.fast_forward.cache.recording import Recording
from terra.runtime.fast_forward.cache.call_records import Inputs
from terra.runtime.fast_forward.purity.observer import Observer
from terra.runtime.fast_forward.sources.dynamic_values import DynamicValues, may_vary
from terra.runtime.fast_forward.sources.effects import leave_natural
from terra.runtime.fast_forward.sources.late_values import OpaqueNumbers, ShownArrays
from terra.runtime.fast_forward.sources.number_sources import StorageSource
from terra.runtime.interpreter import frames
from terra.runtime.tensors.comparing import SCALARS, Unskippable


class Described(NamedTuple):
    """Holds what identifies a call of the user's function."""

    arguments: tuple
    signature: tuple
    inputs: Inputs
    keep: list  # what the signature knows by identity
    held: list  # what describes the objects whose contents are arguments, too
    given: set  # ids of containers among the arguments
    varying: DynamicValues | None  # numbers and arrays that vary, of the step's own function


def observe(runner, trial, called, args, kwargs, fewest, described, expected):
    """Make the call, observe it, and record it if it does nothing but compute. Returns its result.

    `expected`: the records that the run is to be compared with, if it could have been skipped; None if there are none.
    """
    inputs, varying = described.inputs, described.varying
    if varying is not None:
        varying.repeat((), (), ())
        renewed = varying.renewed()
        args, kwargs = renewed[:len(args)], dict(zip(kwargs, renewed[len(args):]))
    dynamic = OpaqueNumbers(runner.step, inputs) if varying is None else varying
    recording, observer = Recording(runner), Observer(runner, described.given, dynamic, inputs=inputs, carried=trial.carried)
    run, conclusion = observer.run, observer.conclusion
    run.may_read_late = True
    if fewest == 1:
        run.recording = recording
    shown, runner.step.shown = runner.step.shown, dynamic if varying is not None else ShownArrays(runner.step, dynamic, runner.step.shown)
    try:
        result = observer.call(called, args, kwargs)
    finally:
        runner.step.shown = shown
    try:
        if runner.step.skeleton is not runner:
            conclusion.release()
            raise Unskippable
        if fewest == 1:
            given = [(StorageSource(None, k, type(x)), x) for k, x in enumerate(described.arguments) if may_vary(x)]
            changed = trial.changed([*given, *run.reads.plain_numbers()])
            if changed:
                trial.vary(changed)
                conclusion.release()
                return result
        reads = conclusion.finish(result)
        if not reads.hold_after_the_run():
            runner.program.note_varying(reads)
            run.impure("changes what it reads")
            raise Unskippable
        if inputs.known_elsewhere(runner, reads) or (varying is not None and reads.holds_any(varying.ids())):
            run.impure("reads a tensor that is among its arguments as well", True)
            raise Unskippable
        if len(run.jumped) < fewest and not run.is_worthwhile:
            run.impure("does too little to be worth a jump")
            raise Unskippable
        recording.is_known = lambda x: is_held(x, described.keep, reads)
        record = recording.make_record(result, inputs, False, deferred=run.deferred, added=conclusion.added, effects=run.effects.values(), opaque=run.opaque, numbers=dynamic,
                                  passed_on=set(map(id, inputs.external)) - run.used - inputs.enclosed)
    except Unskippable as error:
        if run.reason is None:
            run.impure(str(error) or "uses, or gives, something that belongs to this step")
        trial.take_for_constants(run.deferred.places())
        if expected is None:
            trial.failed(run, conclusion.carries)
        elif not run.passing:
            verification.note_impure(runner, expected, run.reason)
        return result
    finally:
        leave_natural(run.effects.values())
    if varying is not None:
        record.repeated, record.numbers, record.calls = tuple(varying.repeated), tuple(varying.sources), tuple(varying.calls)
    if expected is not None:
        trial.jumped()
        verification.compare(runner, expected, record)
        return result
    record.guard, record.keep, record.carried, record.states = reads, described.keep, described.held, tuple(trial.carried.values())
    trial.learned(described.signature, record)
    return result


def run_with_outcomes(runner, called, args, kwargs):
    """Make the call, in which calls of unknown code that were made already give what they gave (see `opaque_calls`). Returns its result."""
    observer = Observer(runner, set())
    try:
        return observer.call(called, args, kwargs)
    finally:
        observer.run.end()


def renewed_object(trial):
    """Returns what was another object in each of the runs that were recorded, for `terra.explain`: (what it is, `file.py:12` of the call); None if nothing was.

    Called when a function is given up, which happens once: nothing that was recorded has been good for another call.
    """
    records = [record for variants in trial.all_variants() for record in variants]
    if trial.jumps or len(records) < 2:
        return None
    before, after = records[-2:]
    frame = frames.around_ours(sys._getframe(1))
    where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    for old, new in zip(before.keep, after.keep):
        if old is not new and type(old) is type(new):
            return f"an argument, an object of type {type(new).__name__},", where
    for key, (space, entries) in after.guard._entries.items():
        for name, value in entries.items():
            old = before.guard._entries.get(key, (space, {}))[1].get(name, value)
            if old is not value and type(old) is type(value) and type(value) not in SCALARS:
                return f"{name}, an object of type {type(value).__name__},", where
    return None
