"""The result of generating a graph: its functions, and what Python must know to call them."""

CHECK_FAILED = "a check of a compiled operation failed"  # what the error says then


class Generated:
    """A generated function: its protos, what its arguments are, and where the channels are."""

    def __init__(self):
        self.name = None
        self.early = False  # which form
        self.fdefs = []  # branches first
        self.library = {}  # name -> FunctionDef of the user's traced functions that are called
        self.arg_specs = []  # ("arg", i) | ("feed", index) | ("res", handle) | ("queue", queue) | ("selects",) | ("expected",)
        self.lasting = None  # what the PythonRunner knows of the arguments that do not change
        self.n_outputs = 0  # the "done" scalar first, then `live_out`
        self.feeds = {}  # (node, slot) -> Feed
        self.feed_queues = []  # by the index of the feed: (its channel, its place among what that takes, of how many)
        self.fetch_queues = {}  # fetch node -> queue
        self.fetched = {}  # fetch node -> index of its value among the outputs, in the deferred form
        self.conditions = {}  # fetch node -> the place of what its value should be, in the form with conditions
        self.select_queues = {}  # switch-case index -> queue
        self.select_index = {}  # switch-case index -> position in the select vector
        self.gate = None  # queue of the gate's token, if there is one
        self.in_place = []  # handles of the variables that are updated before the barrier
        self.undo = []  # how these updates are undone, see `fallback.undo`
        self.live_out = []
        self.selects = {}  # control edge -> ((switch-case, case), ...)
        self.fixed = {}  # node -> its shapes {key: shapes of the outputs}, where the graph is right for these only
        self.varies = False  # whether one of them has had others
        self.open_refs = set()  # nodes of the top function, and refs of their outputs, whose shapes may differ though those of all arguments do not
