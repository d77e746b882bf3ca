"""What eager kernels do, in a graph; and which of several kernels for the same values is the fastest here."""
