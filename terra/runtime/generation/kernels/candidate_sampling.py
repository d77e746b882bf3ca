"""The outputs of a candidate sampler in the graph: the candidates are fed, as Python has found them with the seeds of the step; how often they and the true
classes are to be expected among so many candidates is calculated of them, as the sampler's kernel does (TensorFlow's range_sampler.cc)."""

import math

from terra.runtime.generation.functiondef import attr, dtype
from terra.runtime.generation.kernels.eager_kernels import const_ints
from terra.runtime.generation.kernels.writer import DOUBLE, FLOAT, INT32, INT64, Writer


def sampled_candidates(builder, op_type, refs, attrs, label):
    """Refs of (the candidates, expected counts of the true classes, expected counts of the candidates). refs: the true classes, and what is fed."""
    write = Writer(builder, label)
    true, fed = refs
    sampled, unique, classes = attrs["num_sampled"].i, attrs["unique"].b, attrs["range_max"].i
    zero, length, one = (const_ints(builder, [n]) for n in (0, sampled, 1))
    of_fed = {"T": dtype(INT64), "Index": dtype(INT32)}
    candidates = write("Slice", fed, zero, length, **of_fed)
    tries = write.cast(write("Slice", fed, length, one, **of_fed), INT64, FLOAT) if unique else None
    counts = []
    for drawn in (true, candidates):
        if op_type == "UniformCandidateSampler":
            shape = write("Shape", drawn, T=dtype(INT64), out_type=dtype(INT32))
            share = write("BroadcastTo", write.number(1.0 / classes, FLOAT), shape, T=dtype(FLOAT), Tidx=dtype(INT32))
        else:
            share = _log_uniform(write, drawn, classes)
        counts.append(_expected(write, share, sampled, tries))
    return [candidates, *counts]


def _log_uniform(write, drawn, classes):
    """The probability that one try gives the class: that of the numbers between the logarithms of those before and after it."""
    number = write.cast(drawn, INT64, DOUBLE)
    after, before = (write("AddV2", number, write.number(k, DOUBLE), T=dtype(DOUBLE)) for k in (2.0, 1.0))
    width = write("Log", write("RealDiv", after, before, T=dtype(DOUBLE)), T=dtype(DOUBLE))
    return write.cast(write("RealDiv", width, write.number(math.log1p(classes), DOUBLE), T=dtype(DOUBLE)), DOUBLE, FLOAT)


def _expected(write, share, sampled, tries):
    """How often a class with this probability is expected among the candidates; tries: how many were needed, None if none of them could be in vain."""
    simply = write("Mul", share, write.number(float(sampled), FLOAT), T=dtype(FLOAT))
    if tries is None:
        return simply
    # In double precision: TensorFlow's own operations on floats are less precise here than the functions of C that the kernel uses.
    never = write.in_double("Log1p", write("Neg", share, T=dtype(FLOAT)))
    at_all = write("Neg", write.in_double("Expm1", write("Mul", never, tries, T=dtype(FLOAT))), T=dtype(FLOAT))
    none_in_vain = write("Equal", tries, write.number(float(sampled), FLOAT), T=dtype(FLOAT), incompatible_shape_error=attr(True))
    return write("SelectV2", none_in_vain, simply, at_all, T=dtype(FLOAT))
