"""Programs that measure: each is a command, `python -m examples.benchmarks.fit` for instance; `suite` runs the papers' programs."""

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # TensorFlow chooses by the processor: without it, some kernels are missing, and eager execution takes up to three times as long
