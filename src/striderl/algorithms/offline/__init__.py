"""Offline algorithms: imitation, and critics that stay near the data."""
