"""`terra.profile`: a timeline, and a report, of what runs in a block."""

import os
from types import TracebackType
from typing import Any

from terra.frontends import script
from terra.options import file_to_write
from terra.reporting.explanation import explain
from terra.reporting.page import report as pages
from terra.reporting.timeline import Recording


class profile:
    """Record what Python, the graphs and the threads that build them do until the end of a `with` block.

    path: a file for the timeline, as Chrome's `about:tracing` and Perfetto read it. report: a file for the page that `terra.report` writes, with the timeline in it. The same spans
    appear in TensorFlow's profiler while that is at work. Blocks may lie in one another, and threads may each have one.

    The files are written when the block is left, however that is; if it does not raise, the steps in flight are waited for first, and what they raise is raised then.
    Raises: OptionError for a file whose directory is not there; OSError for one that cannot be written.
    """

    def __init__(self, path: "str | os.PathLike[str] | None" = None, *, report: "str | os.PathLike[str] | None" = None) -> None:
        self._path, self._report = file_to_write(path), file_to_write(report)  # as they are now: the program may go to another directory
        self._recording: Recording | None = None
        self._process = os.getpid()

    def __enter__(self) -> "profile":
        self._recording = Recording()
        return self

    def __exit__(self, kind: "type[BaseException] | None" = None, error: "BaseException | None" = None, trace: "TracebackType | None" = None) -> None:
        try:
            if kind is None:
                script.finish()
        finally:
            self.write()

    def to_dict(self) -> "dict[str, Any]":
        """The timeline so far, as it is in the file: `{"traceEvents": [...]}`."""
        return {"traceEvents": []} if self._recording is None else self._recording.look().trace()

    def discard(self) -> None:
        """Record no more, and write nothing."""
        if self._recording is not None:
            self._recording.end()
            self._recording = None

    def write(self) -> None:
        """Record no more, and write the files. Raises: OSError."""
        recording = self._recording
        if recording is None or os.getpid() != self._process:  # of a forked process, the parent writes
            return
        recording.end()
        if self._path is not None:
            recording.save(self._path)
        if self._report is not None:
            pages.save(self._report, explain(full=True), recording)
