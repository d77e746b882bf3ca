"""Which calls are skipped, and what is called in their place: layers, models, losses and optimizers, functions and operators, methods of tapes, layers of the program's."""
