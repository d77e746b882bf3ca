"""The programs of docs/performance.md, and what `terra.explain` says of them: `python -m tests.performance_page` runs them, and puts that into the page anew."""

import contextlib
import io
import pathlib
import re
import runpy
import sys
import tempfile

DOCUMENT = pathlib.Path(__file__).parent.parent / "docs" / "performance.md"
LINE = "# the line"  # the comment at the line that a cause is to name
_SECTION = re.compile(r"^## (T\d\d): (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Section:
    """A cause of the page: its code and title, the program that has it, the one with the remedy, and what is said of both."""

    def __init__(self, code, title, text):
        self.code, self.title = code, title
        blocks = [(kind, body) for kind, body in _BLOCK.findall(text)]
        assert [kind for kind, _ in blocks] == ["python", "text", "python", "text"], code
        self.before, self.says, self.after, self.says_after = (body for _, body in blocks)


def read():
    """(the lines that all programs begin with, the sections)."""
    text = DOCUMENT.read_text()
    found = list(_SECTION.finditer(text))
    preamble = next(body for kind, body in _BLOCK.findall(text[:found[0].start()]) if kind == "python")
    ends = [match.start() for match in found[1:]] + [len(text)]
    return preamble, [Section(match[1], match[2], text[match.end():end]) for match, end in zip(found, ends)]


def run(path, program):
    """Runs a program, saved at `path`. Returns (the `Explanation` of its step, the number of the line that is marked)."""
    import terra

    path.write_text(program)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            space = runpy.run_path(str(path), run_name="__main__")
        explanation = terra.explain(space["step"])
    finally:
        sys.settrace(None)
    marked = [number for number, line in enumerate(program.splitlines(), 1) if LINE in line]
    return explanation, marked[0] if marked else None


def main():
    """Runs all programs, and writes what is said of them."""
    text, (preamble, sections) = DOCUMENT.read_text(), read()
    with tempfile.TemporaryDirectory() as folder:
        for section in sections:
            for kind, program, said, most in ("before", section.before, section.says, 5), ("after", section.after, section.says_after, 1):
                path = pathlib.Path(folder, f"{section.code.lower()}_{kind}.py")  # each another one: lines are told by the names of their files
                lines = str(run(path, f"{preamble}\n\n{program}")[0]).replace(path.name, "train.py").splitlines()[:most]
                text = text.replace(f"```text\n{said}```", "```text\n" + "\n".join(lines) + "\n```", 1)
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
