"""Runners: presets over the trainer that are built from one config, with the calls of rsl_rl and st_rl."""
