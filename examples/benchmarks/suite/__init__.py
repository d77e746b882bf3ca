"""`python -m examples.benchmark`: each program eagerly, under tf.function and under Terra, taking turns in one process."""
