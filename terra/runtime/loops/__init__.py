"""Steps whose loops vary from step to step: they are rolled, that is cut into pieces, each of which has a graph of its own."""
