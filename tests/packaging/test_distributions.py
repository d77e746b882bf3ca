"""The wheel and the source distribution are built, the one from the other, and work where they are all that there is.

TensorFlow and the rest are those that are installed: the new environment is shown where they are.
"""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import types
import zipfile

import pytest

import terra
from terra.tf.support import versions

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = (".ci", "docs", "examples", "terra", "tests")
FILES = (".importlinter", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "pyproject.toml")
BUILD = "import sys; from setuptools import build_meta as backend; print(getattr(backend, 'build_' + sys.argv[1])(sys.argv[2]))"


def run(words, cwd, path=()):
    """Runs a command in an environment that shows nothing of this checkout."""
    environment = {name: value for name, value in os.environ.items() if name == versions.VARIABLE or not name.startswith(("PYTEST_", "PYTHON", "TERRA_"))}
    environment.update(TF_CPP_MIN_LOG_LEVEL="3", PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=os.pathsep.join(map(str, path)))
    return subprocess.run([*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)


def checked(words, cwd, path=()):
    done = run(words, cwd, path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def backend(place):
    """The folders to find a setuptools in that can build Terra: none where the installed one can."""
    wanted, least = re.search(r'^requires = \["(setuptools>=(\d+))"\]$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE).groups()
    try:
        if int(importlib.metadata.version("setuptools").partition(".")[0]) >= int(least):
            return []
    except importlib.metadata.PackageNotFoundError:
        pass
    if run([sys.executable, "-m", "pip", "install", "--quiet", "--retries", "0", "--target", place, wanted], ROOT).returncode:
        pytest.skip(f"{wanted} is needed to build the distributions; it is not installed, and pip cannot fetch it")
    return [place]


def source_files(folder):
    """The files below a folder of the project, as names relative to it."""
    found = (path.relative_to(folder) for part in FOLDERS for path in (folder / part).rglob("*") if path.is_file())
    return {path.as_posix() for path in found if not {"__pycache__", "_build"} & set(path.parts) and path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source distribution of a copy of this folder, unpacked, and the wheel that is built from that."""
    place = tmp_path_factory.mktemp("built")
    path = backend(place / "tools")
    copy = place / "copy"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    archive = place / checked([sys.executable, "-c", BUILD, "sdist", place], copy, path).split()[-1]
    with tarfile.open(archive) as opened:
        opened.extractall(place, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    source = place / archive.name.removesuffix(".tar.gz")
    wheel = place / checked([sys.executable, "-c", BUILD, "wheel", place], source, path).split()[-1]
    return types.SimpleNamespace(copy=copy, source=source, wheel=wheel)


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """The folder of the commands of a new virtual environment with the wheel in it."""
    place = tmp_path_factory.mktemp("environment")
    checked([sys.executable, "-m", "venv", "--without-pip", place], place)
    commands = place / "bin"
    installing = run([sys.executable, "-m", "pip", "--python", commands / "python", "install", "--no-deps", "--no-index", "--ignore-installed", built.wheel], place)
    if "No module named pip" in installing.stderr:
        pytest.skip("pip is needed to install the wheel")
    assert installing.returncode == 0, installing.stderr
    (packages,) = place.glob("lib/python*/site-packages")
    others = [path for path in sys.path if pathlib.Path(path).name in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text("\n".join(others))  # behind its own packages; what lies there beside packages, as what is installed editable, is not followed
    return commands


# -- the wheel -----------------------------------------------------------------------------------------------------------------

def test_the_wheel_has_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
        metadata = wheel.read(f"terra-{terra.__version__}.dist-info/METADATA").decode()
    package = {name for name in names if ".dist-info/" not in name}
    assert package == {name for name in source_files(built.copy) if name.startswith("terra/")}
    assert {"terra/py.typed", "terra/__init__.pyi", "terra/cli.py"} <= package
    assert {name.partition(".dist-info/")[2] for name in names - package} >= {"entry_points.txt", "licenses/LICENSE"}
    assert re.search(r"^Requires-Dist: tensorflow<", metadata, re.MULTILINE) and f"\nVersion: {terra.__version__}\n" in metadata
    assert "# Terra" in metadata  # the README


def test_the_version(environment, tmp_path):
    assert checked([environment / "terra", "--version"], tmp_path) == f"terra {terra.__version__}\n"


def test_the_doctor(environment, tmp_path):
    assert "a step: co-executed, with eager's results" in checked([environment / "terra", "doctor"], tmp_path)


def test_a_program(environment, tmp_path):
    """It takes Terra from the environment, and its steps are co-executed."""
    (tmp_path / "train.py").write_text(textwrap.dedent("""
        import pathlib, sys
        import tensorflow as tf
        import terra

        assert pathlib.Path(terra.__file__).is_relative_to(sys.prefix), terra.__file__
        w, seen = tf.Variable(tf.ones([3, 2])), []

        @terra.coexecute(wait_for_graph=True)
        def train_step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.tanh(x @ w) - 1.0))
            w.assign_sub(0.1 * tape.gradient(loss, w))
            seen.append(float(loss))

        for k in range(20):
            train_step(tf.fill([4, 3], 0.1 * k))
        print(len(seen), train_step.stats().coexecuted_steps)
    """))
    steps, coexecuted = map(int, checked([environment / "python", "-W", "ignore", "train.py"], tmp_path).split())
    assert steps == 20 and coexecuted >= 10


# -- the source distribution ---------------------------------------------------------------------------------------------------

def test_the_source_distribution_has_all_files(built):
    assert source_files(built.copy) - source_files(built.source) == set()
    assert [name for name in FILES if not (built.source / name).exists()] == []


def test_the_source_distribution_runs_its_tests(built, environment):
    """All of them are found, and a few run."""
    words = ["-q", "-p", "no:cacheprovider", "--assert=plain", "-k", "test_from_scratch or test_dataflow or test_case_assignment or test_what_needs_no_tensorflow"]
    text = checked([environment / "python", "-m", "pytest", *words], built.source)
    passed, others = map(int, re.search(r"(\d+) passed, (\d+) deselected", text).groups())
    assert passed >= 20 and others > 3000, text
