"""Tables of methods of Python's own lists, dicts, sets and strings: which read, write or run the program's code, by name."""

# Methods that change their object.
MUTATORS = frozenset("append appendleft extend extendleft insert pop popleft rotate remove clear sort reverse add discard update setdefault popitem move_to_end "
                      "intersection_update difference_update symmetric_difference_update".split())
# Methods of lists, dicts, sets, strings and numbers by how they look at their arguments.
COMPARING = frozenset("remove index count sort get pop setdefault add discard move_to_end".split())
JOINING = frozenset(
    "union intersection difference symmetric_difference issubset issuperset isdisjoint intersection_update difference_update "
    "symmetric_difference_update".split())
ADDING = frozenset(["append", "appendleft", "insert"])  # put an item into a container, at which they do not look
NOT_LOOKING = frozenset("append appendleft copy keys values items clear reverse popitem popleft rotate".split())
# Methods that give a container or a view made just now.
MAKING = frozenset("copy keys values items split rsplit splitlines union intersection difference symmetric_difference".split())
