"""Keeps the tree of executed locations small.

A Python loop of a million iterations inside a step makes a node per iteration and call site. Only those at which an
operation was seen are ever looked up again by identity, and these are referenced: by a trace, a cursor, a suspended
generator, or a frame that noted where it is. So when many nodes have been made, all nodes that nothing but the tree
itself refers to are dropped (0.5 us each); if such a place is executed again, it simply gets a new node.
"""

import sys
import threading

__all__ = ["Pruner"]

_FEW = 200_000  # nodes: some 50 MB


class Pruner:
    """Counts nodes and prunes their tree. ``made`` may miss some when threads race; it need not be exact."""

    def __init__(self):
        self.made = 0
        self.limit = _FEW
        self._lock = threading.Lock()

    def prune(self, root):
        """Drops what nothing refers to. Another thread may be at work in the tree: a node that it finds stays valid for it."""
        if self._lock.acquire(blocking=False):
            try:
                self._prune(root)
            finally:
                self._lock.release()

    def _prune(self, root):
        nodes = [root]
        for node in nodes:  # grows on the way: parents before children, iterations in order
            nodes.extend(list(node.children.values()))
        kept = 0
        node = None
        while len(nodes) > 1:
            node = nodes.pop()
            if node.children:
                kept += 1
                continue
            siblings = node.parent.children
            key, before = node.id, None
            if node.counter:
                before = siblings.get((key, node.counter - 1) if node.counter > 1 else key)
                key = key, node.counter
            linked = before is not None and before.next is node
            # The tree's references, this variable and the argument; what the node holds itself does not matter.
            if sys.getrefcount(node) <= 3 + linked:
                del siblings[key]
                if linked:
                    before.next = None
            else:
                kept += 1
        self.made = kept
        self.limit = max(_FEW, 2 * kept)
