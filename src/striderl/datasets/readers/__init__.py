"""Datasets of other libraries, read episode by episode, and brought over into trajectories or a replay."""
