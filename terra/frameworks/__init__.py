"""Knowledge of libraries: tables and predicates on Keras, tf_keras, NumPy and others.

Nothing here looks at a running step. `framework_objects` tells the framework's own functions, layers, losses
and other objects from those of the program, and classes that derive from them. `effect_free`
lists functions that an observed run may call although they are not skipped, by module and name.
`keras`, `tensorflow`, `numpys` and `libraries` say where things are in each of them; `methods` and
`settings` have what is common to several.
"""
