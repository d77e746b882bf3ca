"""Facts about classes, attributes and code without running any of it.

:mod:`.attribute_lookup`   how Python looks attributes up
:mod:`.bytecode`           what the bytecode of functions tells
:mod:`.library_classes`    which classes and functions are those of libraries that do nothing but compute
:mod:`.lifetimes`          who holds an iterator
:mod:`.plain_classes`      which classes of the program's make plain objects
:mod:`.program_code`       whether a call may run code of the program's
:mod:`.reach`              whether such code may come to something of the framework's
"""
