"""Policies: stages and heads composed into actors and critics."""
