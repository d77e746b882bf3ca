"""Source to source: user functions that know their executed location. No TensorFlow in here.

    source -> gast -> Instrumenter -> ast -> code with the user's file and lines -> function with the user's own cells

======================  =====================================================================================
:mod:`.source`          the syntax tree of a function's file, and the function in it
:mod:`.assertions`      what pytest has done to the assertions of that file
:mod:`.templates`       quoted code with holes
:mod:`.analysis`        questions about a tree: does it suspend, what does it bind
:mod:`.instrumenter`    what is inserted where
:mod:`.comprehensions`  the same for comprehensions and generator expressions
:mod:`.outline`         functions that are made of the blocks in a script's loops
:mod:`.names`           which names a piece of a tree reads and binds
:mod:`.unparser`        trees as text (astunparse, extended to Python 3.13)
:mod:`.factory`         trees to code objects to functions
:mod:`.raising`         the line that a frame shows which an exception has left
:mod:`.policy`          whose code is it: the user's, or a library's
:mod:`.convert`         decisions and forms, kept; what call sites ask
:mod:`.edits`           functions that are changed in place
:mod:`.classes`         methods that no call site names (``call`` of a Keras layer, ``__enter__``, properties)
:mod:`.wrappers`        library objects around a user's function (``contextmanager``, ``lru_cache``)
:mod:`.api`             what the rest of Terra uses
======================  =====================================================================================

At run time, instrumented code talks to :mod:`terra.location.location` only.
"""

from .api import instrument, is_instrumented, reason, to_code
from .classes import restore as restore_classes
from terra.transform.rewriting.outline import is_block, is_outlined, outline
from .policy import configure
from .source import rewrites

__all__ = ["instrument", "is_block", "is_instrumented", "is_outlined", "outline", "reason", "rewrites", "to_code", "configure", "restore_classes"]
