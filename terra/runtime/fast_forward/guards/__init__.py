"""Guards: what must still hold for a record of a call to be replayed.

A call may read attributes, contents of containers, methods of classes, globals, and functions of
libraries. When it is recorded, all of these are listed with what they held. Comparing them later
walks nothing: it looks for the same objects, or for equal scalars, one container after the other,
or for unchanged version numbers of dicts where Python has these (`terra.tf.versions`).

* `guard_builder` lists the containers that a framework object may read, recursively.
* `container_guard` keeps what containers held, so that all are compared at once; `items_guard` does so for
  lists and sets, `entries_guard` for single entries of dicts.
* `guard_set` puts both together, with global settings, into the guard of one call.
* `read_set` does the same for what a run of the program's own code has read; `null_read_set` stands in for
  it in an impure run, of which nothing is kept. `property_reads` lists what a property of the framework's
  looks at.
* `attribute_filter` decides which attributes count: not those that change after each step and that the
  framework never reads. `asked` sees what it reads, while a call is recorded.
* `patch_guard` looks for functions of the framework that were replaced.
* `added_losses` compares and restores the losses that layers add in a call.
"""
