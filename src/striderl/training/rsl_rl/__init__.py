"""Runners: presets over the trainer that are built from one config, with the calls of rsl_rl and st_rl.

config_policy, config_algorithm ─▶ config_generations ─▶ RunnerConfig         dicts of all generations
live_objects ─▶ translate ─▶ on_policy_runner ─▶ two_stage_runner ─▶ build   by `experiment.assembly`
               stepping, reporting ──┘    dataset_env ──┘
"""
