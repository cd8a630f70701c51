"""Trajectories on disk: appended by many writers, read while they write, whole after any kill."""
