"""Datasets of other libraries, read episode by episode and converted to trajectories or a replay."""
