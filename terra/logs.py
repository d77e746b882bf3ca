"""The log of Terra, `logging.getLogger("terra")`: where it goes if the program says nothing about logging, and what `TERRA_LOG` chooses.

`TERRA_LOG=info` shows what happens to steps, `TERRA_LOG=debug` all messages, `TERRA_LOG=fallbacks` warnings and the steps that leave their graph, each with the reason.
"""

import logging
import os
import sys

CHOICES = ("info", "debug", "fallbacks")
log = logging.getLogger("terra")


class ToStandardError(logging.Handler):
    """Writes messages to standard error, unless the program has handlers that are shown them: nothing is to come twice."""

    def emit(self, record: logging.LogRecord) -> None:
        if _others_listen(logging.getLogger(record.name)):
            return
        try:
            sys.stderr.write(f"terra: {self.format(record)}\n")
        except Exception:
            self.handleError(record)


def _others_listen(logger: logging.Logger | None) -> bool:
    while logger is not None:
        if any(type(handler) is not ToStandardError for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _is_of_fallback(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or "fell back" in str(record.msg)


def choose(choice: str) -> None:
    """Show what a value of `TERRA_LOG` stands for; an empty one leaves it to the program."""
    log.removeFilter(_is_of_fallback)
    if choice and choice not in CHOICES:
        log.warning("TERRA_LOG=%s is none of %s; it is ignored", choice, ", ".join(CHOICES))
        return
    log.setLevel({"": logging.NOTSET, "debug": logging.DEBUG}.get(choice, logging.INFO))
    if choice == "fallbacks":
        log.addFilter(_is_of_fallback)


def install() -> None:
    """Makes messages be shown, as the environment says."""
    if not any(type(handler) is ToStandardError for handler in log.handlers):
        log.addHandler(ToStandardError())
    choose(os.environ.get("TERRA_LOG", "").strip().lower())
