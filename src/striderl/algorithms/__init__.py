"""Algorithms: pure losses and targets."""
