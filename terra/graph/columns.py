"""Places for the boxes of a large picture, and ways for its edges.

Graphviz places thousands of boxes that branch in a minute, at best, and draws a chain of thousands as one that is a hundred metres long. So Terra does it: basic blocks are set
one below the other, the cases of one switch-case side by side, and what is too long for a column goes on in the next one. Edges are straight where nothing is in between;
others run between two rows, and in lanes to the left of a column.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

_GAP, _SPACE = 24.0, 18.0  # points: between boxes side by side, between rows
_CHARACTER, _LINE, _MARGIN = 6.0, 12.0, 16.0  # how much a character of a box takes, a line of text, and what is around the text
_WIDTH, _HEIGHT, _TITLED = 54.0, 36.0, 110.0  # of a box, of a case with a title, at least
_LANES, _LANE = 6, 4.0  # for edges, to the left of a column
_BESIDE = _LANES * _LANE + _GAP / 2  # what these take
_LEAST_ROWS = 8
_FRAME, _TITLE = 6.0, 10.0  # around the boxes of a case
_ARROW = 8.0


class Box(NamedTuple):
    """Where a box is: its centre and size, where y grows upwards; its column and its part of the picture, by their numbers; whether it is first and last of its case."""

    x: float
    y: float
    width: float
    height: float
    column: int
    part: int
    is_first: bool
    is_last: bool
    floor: float  # the middle of the space below the boxes of this part, in this column


class Frame(NamedTuple):
    """The boxes of one case that are in one column, and what is around them: left, bottom, right, top; no title where there is nothing to tell it from."""

    title: str
    boxes: list[str]
    around: tuple[float, float, float, float]


class _Piece(NamedTuple):
    """The part, or as much of it as has its place in one column."""

    part: int
    row: int  # of the column, where it begins
    cases: list[tuple[str, list[str], bool, bool]]  # (title, boxes, whether they begin the case, whether they end it)


class Columns:
    """The places of all boxes.

    parts: for each part of the picture (a switch-case) its cases as (title, boxes from above to below).
    texts: {box: its text}.
    """

    def __init__(self, parts: Sequence[Sequence[tuple[str, list[str]]]], texts: dict[str, str]):
        self.boxes: dict[str, Box] = {}
        self.frames: list[Frame] = []
        self._sizes = {box: _size(text) for box, text in texts.items()}
        self._row = _SPACE + max(height for _, height in self._sizes.values())  # from one row to the next
        self._lefts: list[float] = []  # of the columns' lanes
        self._sides: list[dict[int, float]] = []  # {part: where its boxes begin on the left} for each column
        self._used: dict[int, int] = {}  # {column: how many edges are in its lanes}
        rows = max(len(parts), _LEAST_ROWS)
        for _ in range(3):  # until the picture is about as wide as it is high
            found = _in_columns(parts, rows)
            width = sum(self._widest(pieces) + _BESIDE + _GAP for pieces in found)
            rows = max(_LEAST_ROWS, round(math.sqrt(rows * width / self._row)))
        self._floor = -rows * self._row
        left = 0.0
        for number, pieces in enumerate(_in_columns(parts, rows)):
            self._lefts.append(left)
            self._sides.append({})
            left = self._fill(number, pieces, left + _BESIDE) + _GAP

    def _width_of(self, cases):
        return sum(self._case_width(title, boxes) + _GAP for title, boxes, *_ in cases)

    def _widest(self, pieces):
        return max(self._width_of(piece.cases) for piece in pieces)

    def _case_width(self, title, boxes):
        return max([_TITLED if title else _WIDTH, *(self._sizes[box][0] for box in boxes)])

    def _fill(self, column, pieces, left):
        """Sets the pieces of a column. Returns where it ends on the right."""
        widest = self._widest(pieces)
        for piece in pieces:
            x = self._sides[column][piece.part] = left + (widest - self._width_of(piece.cases)) / 2
            end = piece.row + len(_longest(piece.cases))
            for title, boxes, is_begun, is_ended in piece.cases:
                width = self._case_width(title, boxes)
                for k, box in enumerate(boxes):
                    self.boxes[box] = Box(x + width / 2, -(piece.row + k) * self._row, *self._sizes[box], column, piece.part, is_begun and k == 0,
                                          is_ended and k == len(boxes) - 1, (0.5 - end) * self._row)
                if boxes:
                    above, below = self.boxes[boxes[0]], self.boxes[boxes[-1]]
                    around = x - _FRAME, below.y - below.height / 2 - _FRAME, x + width + _FRAME, above.y + above.height / 2 + _FRAME + _TITLE
                    self.frames.append(Frame(title, boxes, around))
                x += width + _GAP
        return left + widest

    def way(self, producer: str, taker: str) -> list[tuple[float, float]]:
        """The corners of the edge from one box to another one, from its beginning to the tip of its arrow."""
        one, other = self.boxes[producer], self.boxes[taker]
        begin, end = (one.x, one.y - one.height / 2), (other.x, other.y + other.height / 2)
        if one.column == other.column and one.part == other.part and one.y - other.y == self._row:
            return [begin, end]
        if one.column == other.column and other.part == one.part + 1 and one.is_last and other.is_first:
            return [begin, (one.x, one.floor), (other.x, other.y + self._row / 2), end]
        below, above = one.floor if one.is_last else one.y - self._row / 2, other.y + self._row / 2
        lane = self._lane(other.column)
        if other.column == one.column:  # beside what is in between
            sides = self._sides[one.column]
            lane += min(sides[part] for part in range(one.part, other.part + 1) if part in sides) - _BESIDE - self._lefts[one.column]
            across = [(lane, below)]
        elif other.column == one.column + 1:
            across = [(lane, below)]
        else:  # below the columns in between
            down = self._lane(one.column + 1)
            across = [(down, below), (down, self._floor), (lane, self._floor)]
        return [begin, (one.x, below), *across, (lane, above), (other.x, above), end]

    def _lane(self, column):
        used = self._used[column] = self._used.get(column, -1) + 1
        return self._lefts[column] + used % _LANES * _LANE


def _size(text):
    lines = text.split("\n")
    return max(_WIDTH, _CHARACTER * max(map(len, lines)) + _MARGIN), max(_HEIGHT, _LINE * len(lines) + _MARGIN)


def _longest(cases):
    return max((boxes for _, boxes, *_ in cases), key=len)


def _in_columns(parts, rows):
    """Returns the pieces of each column, which has so many rows."""
    columns, row = [[]], 0
    for number, cases in enumerate(parts):
        titled, length = any(title for title, _ in cases), len(_longest(cases))
        row += titled and row > 0  # for the titles
        if row + length > rows and titled and length <= rows and row > 0:
            columns.append([])
            row = 0
        begun = 0
        while begun < length:
            if row >= rows:
                columns.append([])
                row = 0
            n = min(rows - row, length - begun)
            columns[-1].append(_Piece(number, row, [(title, boxes[begun:begun + n], begun == 0, begun + n >= len(boxes)) for title, boxes in cases]))
            row, begun = row + n, begun + n
        row += titled
    return columns


def curve(corners: list[tuple[float, float]]) -> str:
    """A line through these corners with an arrow at its end, as Graphviz has it: Bezier curves, end to end."""
    (x, y), (end_x, end_y) = corners[-2:]
    length = math.hypot(end_x - x, end_y - y) or 1.0
    tip, k = corners[-1], max(length - _ARROW, 0.0) / length
    points = [*corners[:-1], (x + (end_x - x) * k, y + (end_y - y) * k)]
    controls = [points[0]] + [point for here, there in zip(points, points[1:]) for point in (here, there, there)]
    return " ".join([f"e,{_number(*tip)}", *(_number(*point) for point in controls)])


def _number(x, y):
    return f"{x:.1f},{y:.1f}"
