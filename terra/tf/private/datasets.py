"""Input pipelines: the dataset behind an iterator, and what a dataset is made of."""

import sys

from terra.tf import private_names as tfi

_ITERATOR_FRAMES = 10  # between `dataset_of_iterator` and the iterator's method, with some to spare


def dataset_of_iterator(resource):
    """The dataset behind the iterator `resource`, which an operation on this thread is about to use; None if it is not found.

    The resource itself does not tell, but the `tf.data.Iterator` whose method calls the operation holds both.
    """
    frame = sys._getframe(1)
    for _ in range(_ITERATOR_FRAMES):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        if isinstance(owner, tfi.tf.data.Iterator) and getattr(owner, "_iterator_resource", None) is resource:
            return getattr(owner, "_dataset", None)
        frame = frame.f_back
    return None


def give_next(iterator, give):
    """Makes an iterator of `tf.data` give what `give()` gives (or raises) once, before its next element."""
    methods = {name: vars(iterator).get(name) for name in ("_next_internal", "get_next_as_optional")}

    def once():
        for name, method in methods.items():
            if method is None:
                delattr(iterator, name)
            else:
                setattr(iterator, name, method)
        return give()

    iterator._next_internal = once
    iterator.get_next_as_optional = lambda: tfi.tf.experimental.Optional.from_value(once())


def dataset_parts(dataset):
    """(datasets, functions, tensors) that `dataset` is directly made of; None if it may have others.

    tf.data's own classes keep them among their attributes.
    """
    if not isinstance(dataset, tfi.tf.data.Dataset) or isinstance(dataset, tfi.VariantDataset) \
            or not type(dataset).__module__.startswith("tensorflow.python.data."):
        return None
    datasets, functions, tensors = list(dataset._inputs()), [f.function for f in dataset._functions()], []
    todo = [value for name, value in vars(dataset).items() if name != "_variant_tensor_attr"]
    while todo:
        value = todo.pop()
        if isinstance(value, tfi.tf.data.Dataset):
            datasets.append(value)
        elif isinstance(value, tfi.StructuredFunctionWrapper):
            functions.append(value.function)
        elif isinstance(value, tfi.tf.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            todo += value
        elif isinstance(value, dict):
            todo += value.values()
    return datasets, functions, tensors
