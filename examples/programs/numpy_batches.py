"""The Keras Sequential of `keras_mlp` on batches that are NumPy arrays, as they come out of scikit-learn or a generator of one's own.

Arrays are no tensors: a step may look into them like any Python code. This one only gives them to the model and the loss. AutoGraph: runs, makes tensors of them at each call.
"""

from examples.programs import Job, keras_mlp

SIZES = keras_mlp.SIZES


def build(seed, size="benchmark"):
    job = keras_mlp.build(seed, size)
    return Job(job.step, [tuple(part.numpy() for part in batch) for batch in job.batches])
