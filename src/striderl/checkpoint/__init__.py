"""Checkpoints that are whole or invisible, checked when read, and never run as code."""
