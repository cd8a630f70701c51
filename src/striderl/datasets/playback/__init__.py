"""Recorded trajectories as if envs were stepped: N of them side by side."""
