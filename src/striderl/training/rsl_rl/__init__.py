"""Runners: presets over the trainer that are built from one config, with the calls of rsl_rl and st_rl.

config_policy, config_algorithm ─▶ config_generations ─▶ RunnerConfig         dicts of all generations
build_terms ─▶ build_parts ─▶ on_policy_runner ─▶ two_stage_runner ─▶ build
                stepping, reporting ──┘    dataset_env ──┘
"""
