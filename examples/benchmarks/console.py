"""What the examples share to talk to a person: progress, and one readable line for an exception."""

import re
import sys


class Progress:
    """Progress on standard error: a bar if `rich` is there and a person watches, else a line per tenth of the work.

    Nothing runs in the background (`rich` would redraw from a thread of its own): the examples measure time, and a
    thread that takes the interpreter lock ten times a second would be measured too.
    """

    def __init__(self, total, title, quiet=False):
        self.total, self.title, self.quiet = total, title, quiet
        self.done = 0
        self._bar = None
        self._tenths = 0

    def __enter__(self):
        if not self.quiet and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import Progress as Bar
            except ImportError:
                return self
            # What is printed meanwhile goes above the bar, unless standard output is a file or a pipe.
            above = sys.stdout.isatty()
            self._bar = Bar(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=above)
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total)
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.stop()

    def advance(self, text="", amount=1):
        """Count `amount` units as done; `text` says what is going on."""
        self.done += amount
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.update(self._task, advance=amount, description=f"{self.title}  {text}", refresh=True)
            return
        tenths = 10 * self.done // self.total
        if tenths > self._tenths:
            self._tenths = tenths
            print(f"{self.title}  {10 * tenths:3d} %  {text}", file=sys.stderr, flush=True)


def error_line(error):
    """The line of an exception's message that says what went wrong.

    AutoGraph puts "in user code:" and a traceback before the message, so there it is the last line that counts. Keras says
    first which layer was called, and puts the message in bold.
    """
    kind = type(error).__name__
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
    if lines and lines[0].startswith("in user code"):
        start = max((index for index, line in enumerate(lines) if line.startswith(f"{kind}:")), default=len(lines) - 1)
        lines = [lines[start].removeprefix(f"{kind}:").strip(), *lines[start + 1 :]]
    while len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        del lines[0]
    return f"{kind}: {lines[0]}" if lines else kind
