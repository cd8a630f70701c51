"""Learners from a dataset alone: imitation, and critics that stay near the data."""
