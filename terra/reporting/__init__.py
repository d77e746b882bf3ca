"""Says what Terra did with the steps of this process, in words: `terra.explain`.

Finding out and writing down are apart. `facts` takes together what is known of one step function: its counts, its times, its program. `causes` has a code and a title
for each reason why steps are slower than they could be. The finders (`paths`, `skipping`, `values`, `surroundings`) look for these reasons among the facts; each gives
`Cause` objects: a line of the program, what was seen there, one remedy, and how many milliseconds of a step it may cost. `diagnosis` puts them in order, and leaves out
those that follow from others. `explanation` writes it down, `details` the rest of what is known.

`timeline` makes a trace of the spans that `runtime.interpreter.spans` has recorded, `profiling` is `terra.profile`, and `page` writes the report.

Nothing here runs before somebody asks, and nothing is measured for it: the times are those that `runtime.fallback.policy` compares anyway. Open `explanation` first.
"""
