"""Feed points of a graph that starts with its step, and which of them share a channel."""

from terra.graph.trace import FEED
from terra.tf import opschema

CLOSE, FAR = 6, 16  # operations between two feeds, and between the first and the last, for which one message is enough: Python takes about as long for these as for another message


class Feed:
    """A feed point: input `slot` of `node` gets its value from Python."""

    __slots__ = ("node", "slot", "enum", "index", "group")

    def __init__(self, node, slot, enum, index):
        self.node, self.slot, self.enum, self.index, self.group = node, slot, enum, index, None


class FeedGroup:
    """Feeds that share a channel, in order: the graph gets all of them with the last one."""

    __slots__ = ("feeds", "queue", "refs")

    def __init__(self):
        self.feeds, self.queue, self.refs = [], None, None


def group_feeds(block, feeds):
    """Joins feeds of a straight line of nodes that lie close to each other: each message costs both sides as much as some operations. What Python
    reads comes between.

    feeds: {(node, input): Feed}.
    """
    group = first = last = None
    for position, node in enumerate(block):
        if node.payload.event.info.category == opschema.FETCH:
            group = None
        for k, kind in enumerate(node.payload.kinds):
            if kind[0] == FEED:
                if group is None or position - last > CLOSE or position - first > FAR:
                    group, first = FeedGroup(), position
                last = position
                feed = feeds[node, k]
                feed.group = group
                group.feeds.append(feed)
