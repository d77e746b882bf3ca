"""Gradient tapes inside a step: which operations a tape is told of, and when; what custom gradients record (`backward`); Jacobians."""
