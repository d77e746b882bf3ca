"""ResNet50 on patches of photographs, whose batch normalisations an attribute switches to evaluation and back.

One of Terra's ten programs and of Janus' eleven (there on ImageNet). The model has an attribute that its batch normalisations obey, and every few steps the
trainer turns it off, notes the accuracy, and turns it on again: a graph that was traced once knows either all of it or nothing.
AutoGraph: fails ('SymbolicTensor' has no `numpy`). Without the reading it would evaluate in each step, and the list would hold one tensor without a value.
"""

from examples.programs import Job
from examples.programs.blocks.convolutional import EvaluatingTrainer, ResNet, labelled_patches

SIZES = {
    "test": {"side": 32, "batch": 4, "filters": 4, "blocks": (1,), "classes": 2},
    "benchmark": {"side": 64, "batch": 8, "filters": 16, "blocks": (3, 4, 6, 3), "classes": 2},
    "paper": {"side": 224, "batch": 64, "filters": 64, "blocks": (3, 4, 6, 3), "classes": 1000},
}
EVALUATE_EVERY = 4


def build(seed, size="benchmark"):
    return job(seed, **SIZES[size])


def job(seed, side, batch, filters, blocks, classes):
    *batches, held_out = labelled_patches(seed, side, batch, count=9)
    return Job(EvaluatingTrainer(ResNet(filters, blocks, classes), held_out, EVALUATE_EVERY).train_step, batches)
