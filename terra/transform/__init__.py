"""Source to source: user functions that know their executed location. No TensorFlow in here.

    source -> gast -> Instrumenter -> ast -> code with the user's file and lines -> function with the user's own cells

================================  =====================================================================================
:mod:`.source`                    the syntax tree of a function's file, and the function in it
:mod:`.rewriting.assertions`      what pytest has done to the assertions of that file
:mod:`.rewriting.templates`       quoted code with holes
:mod:`.rewriting.analysis`        questions about a tree: does it suspend, what does it bind
:mod:`.rewriting.instrumenter`    what is inserted where
:mod:`.rewriting.comprehensions`  the same for comprehensions and generator expressions
:mod:`.rewriting.outline`         functions that are made of the blocks in a script's loops
:mod:`.rewriting.names`           which names a piece of a tree reads and binds
:mod:`.rewriting.unparser`        trees as text (astunparse, extended to Python 3.13)
:mod:`.factory`                   trees to code objects to functions
:mod:`.rewriting.raising`         the line that a frame shows which an exception has left
:mod:`.policy`                    whose code is it: the user's, or a library's
:mod:`.convert`                   decisions and forms, kept; what call sites ask
:mod:`.forms`                     the instrumented forms of functions
:mod:`.edits`                     functions that are changed in place
:mod:`.classes`                   methods that no call site names (``call`` of a Keras layer, ``__enter__``, properties)
:mod:`.wrappers`                  library objects around a user's function (``contextmanager``, ``lru_cache``)
:mod:`.api`                       what the rest of Terra uses
================================  =====================================================================================

At run time, instrumented code talks to :mod:`terra.location` only.
"""

from .api import instrument, is_instrumented, reason, to_code
from .classes import restore as restore_classes
from .policy import configure
from .rewriting.blocks import calls_helper, helpers_of, is_block, is_step, name_called, own_nodes
from .rewriting.outline import filled_in, is_outlined, outline
from .source import rewrites
from .wrappers import STEPS

__all__ = ["STEPS", "calls_helper", "filled_in", "helpers_of", "instrument", "is_block", "is_instrumented", "is_outlined", "is_step", "name_called", "outline", "own_nodes", "reason", "rewrites", "to_code", "configure", "restore_classes"]
