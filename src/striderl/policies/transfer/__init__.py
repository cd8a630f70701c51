"""Weights from one observation layout to another, by component name."""
