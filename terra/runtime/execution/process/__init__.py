"""What may happen at any time in a process: signal handlers, garbage collections, other threads that look into a step."""
