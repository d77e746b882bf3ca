"""How the source of one function is rewritten: `instrumenter` walks its syntax tree, by the `templates`, with `analysis` of what each name stands
for; `unparser` gives the text.

Statements that would change what the program sees (comprehensions, assertions that pytest rewrites, `finally`) have modules of their own.
"""
