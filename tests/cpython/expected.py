"""Tests that pass plain and may fail instrumented, each with the reason. No others may."""

EXPECTED = {}
