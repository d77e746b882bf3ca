"""The ways in: `terra.coexecute` (`decorator`), `terra.GradientTape` and the blocks it makes steps of (`gradient_tape`, `block_step`), `python -m terra run` (`script`), `terra.compile` (`keras_support`).

What belongs to the process stands here, too: its end (`at_exit`), forks, and the replicas of distribution strategies.
"""
