"""Facts about classes, attributes and code without running any of it.

:mod:`.attribute_lookup`   how Python looks attributes up
:mod:`.bytecode`           what the bytecode of functions tells
:mod:`.program_code`       whether a call may run code of the program's
"""
