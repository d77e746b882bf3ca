"""Writes the report: one HTML page on what Terra did with the steps of a program, which needs nothing but itself.

`source` finds out what happened on each line of the program's files: operations that were co-executed, values that were read and given, calls that were skipped, steps that left their graph,
causes of slowness. `drawing` draws the spans of a recording. `report` puts these together with what `terra.explain` says, with the listings of the graphs and the
statistics. `style` has the page's frame and its CSS. There is no script in it, and no address of anything elsewhere.

Open `report` first.
"""
