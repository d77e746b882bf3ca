"""What the interpreter tells: frames as locations where code is not instrumented, tracebacks without Terra's own frames, profile functions that are already set."""
