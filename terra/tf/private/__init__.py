"""Uses of TensorFlow's private parts, by kind: `replacements`, `runtime_functions`, `datasets`, `symbolic` graphs, `scopes`, `hardware`, lookup `tables`. The
parts themselves are named in `terra.tf.private_names`.
"""
