"""Guards: what must still hold for a record of a call to be replayed.

A call may read attributes, contents of containers, methods of classes, globals, and functions of
libraries. When it is recorded, all of these are listed with what they held. Comparing them later
walks nothing: it looks for the same objects, or for equal scalars, one container after the other,
or for unchanged version numbers of dicts where Python has these (`terra.tf.versions`).

* `walk` lists the containers that a framework object may read, recursively.
* `snapshots` keeps what containers held, so that all are compared at once.
* `guards` puts both together, with global settings, into the guard of one call.
* `reads` does the same for what a run of the program's own code has read; `unnoted` stands in for
  it in an impure run, of which nothing is kept.
* `lasting` decides which attributes count: not those that change after each step and that the
  framework never reads. `asked` sees what it reads, while a call is recorded.
* `replaced` looks for functions of the framework that were replaced.
* `added_losses` compares and restores the losses that layers add in a call.
"""
