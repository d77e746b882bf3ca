"""Interpreters that begin where TensorFlow has been imported and nothing has been run: forks of one process, because importing it takes seconds."""

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import types

LIMIT = 100  # seconds for a program

_ROOT = """
import json, os, sys
import numpy, tensorflow
for line in sys.stdin:
    first, cwd, names = json.loads(line)
    if os.fork() == 0:
        for stream, name, flags in zip((sys.stdin, sys.stdout), names, (os.O_RDONLY, os.O_WRONLY)):
            os.dup2(os.open(name, flags), stream.fileno())
        if cwd is not None:
            os.chdir(cwd)
        sys.argv[1:] = [first]
        break
else:
    os._exit(0)
"""

_PARENT = """
import gc, json, os, signal, sys
exec(sys.argv[1])
gc.freeze()  # else each child goes through all of TensorFlow when it ends
for line in sys.stdin:
    code, limit, *names = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(limit)
for stream, name in zip((sys.stdout, sys.stderr), names):
    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), stream.fileno())
exec(compile(code, "<string>", "exec"))
"""


def _start(program, *arguments, **options):
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", program, *arguments], env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"), stdin=subprocess.PIPE, text=True, **options)


@functools.cache
def _root():
    """The process that all share whose first import may be TensorFlow's: each of its forks goes on as a parent of its own."""
    return _start(_ROOT + _PARENT)


class Interpreters:
    """Runs programs one after the other, each in an interpreter of its own, whose end is that of any other.

    place: a directory for what they write. first: what has been run in all of them, the imports. cwd: where they run.
    alone: nothing is to run before `first`, so that the parent is a process of its own.
    """

    def __init__(self, place, first, cwd=None, alone=False):
        self._place, self._numbers = place, itertools.count()
        self._process = None
        if alone:
            self._process = _start(_PARENT, first, cwd=cwd, stdout=subprocess.PIPE)
            self._stdin, self._stdout = self._process.stdin, self._process.stdout
            return
        names = [str(place / name) for name in ("programs", "statuses")]
        for name in names:
            os.mkfifo(name)
        print(json.dumps([first, None if cwd is None else os.path.abspath(cwd), names]), file=_root().stdin, flush=True)
        self._stdin, self._stdout = open(names[0], "w"), open(names[1])

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._stdin.close()
        self._stdout.close()
        if self._process is not None:
            self._process.wait()

    def run(self, code):
        """The `returncode`, `stdout` and `stderr` of a program, whose global names are those of `first`."""
        number = next(self._numbers)
        names = [self._place / f"{number}.{kind}" for kind in ("out", "err")]
        print(json.dumps([code, LIMIT, *map(str, names)]), file=self._stdin, flush=True)
        status = int(self._stdout.readline())
        assert status != -signal.SIGALRM, "it hangs"
        return types.SimpleNamespace(returncode=status, stdout=names[0].read_text(), stderr=names[1].read_text())

    def run_script(self, *argv, options=None):
        """The same of a script with its arguments, under `python`, or under `python -m terra run` with these options. `first` has imported runpy and sys."""
        if options is None:
            return self.run(f"sys.argv[:] = {[*map(str, argv)]!r}\nrunpy.run_path(sys.argv[0], run_name='__main__')")
        return self.run(f"sys.argv[:] = {['terra', 'run', *options, *map(str, argv)]!r}\nrunpy.run_module('terra', run_name='__main__', alter_sys=True)")


def run_script(interpreters, directory, *words):
    """Runs `python -m terra run` with these words in a directory, in an interpreter that has imported os, runpy and sys. Returns what `Interpreters.run` does."""
    return interpreters.run(
        f"os.chdir({str(directory)!r})\nsys.path[0], sys.argv[:] = os.getcwd(), {['terra', 'run', *words]!r}\n"
        "runpy.run_module('terra', run_name='__main__', alter_sys=True)")
