"""Losses that layers add in a call (`add_loss`, activity regularizers). Keras keeps them in a list of each layer, which is emptied when the outermost
call begins.

A call that is skipped leaves these lists as it would, with tensors of its own step; what they held before is part of what it depends on, unless it
empties them. (Those of tf_keras must be empty: see `container_guard.ContainerGuard.no_losses`.)
"""

from terra.runtime.tensors.tensor import TerraTensor


def list_of(attributes):
    """The list among the attributes of an object, if that is a layer of Keras 3; else None."""
    held = attributes.get("_losses")
    return held if isinstance(held, list) and "_loss_ids" in attributes else None


def identify(runner, losses):
    """Returns a key for losses, all of them computed by this step; None if some were not."""
    if not all(type(x) is TerraTensor and x._owner is runner for x in losses):
        return None
    return tuple([(x._key, x._shp) for x in losses])


class Before:
    """The contents of these lists before a call that is recorded; losses of this step become its `inputs`."""

    def __init__(self, runner, lists, inputs):
        self._runner = runner
        self._held = [(held, tuple(held)) for held in lists]
        for _, losses in self._held:
            for x in losses:
                if type(x) is TerraTensor and x._owner is runner:
                    inputs.values[x._key] = x

    def changed(self, containers):
        """[(list, what identifies the losses that it must hold before the call, None if it may hold any)] of those that the call has changed, or
        which hold losses of this step; the others are noted in the Snapshot `containers`. None if the call adds losses to those of another step."""
        found = []
        for held, before in self._held:
            now = tuple(held)
            same = len(now) == len(before) and all(x is y for x, y in zip(now, before))
            of_this_step = identify(self._runner, before)
            if same and (not before or of_this_step is None):
                containers.add(held)
            elif before and not any(x is y for x in now for y in before):
                found.append((held, None))  # it was emptied
            elif of_this_step is not None:
                found.append((held, of_this_step))
            else:
                return None
        return found


def fit(runner, losses, inputs):
    """Returns whether the lists hold what the recorded call `losses` needs; that becomes part of its `inputs`."""
    for held, needed, _ in losses:
        if needed is None:
            continue
        if identify(runner, held) != needed:
            return False
        for x in held:
            inputs.values[x._key] = x
    return True


def leave(held, losses):
    """Replaces the contents of a list by these losses; Keras' own methods would look whether they are variables."""
    list.clear(held)
    list.extend(held, losses)
