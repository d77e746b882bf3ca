"""How an operation that the skeleton issues is compared with a node that can follow: what its inputs are, which shapes it has, and why it matches none."""
