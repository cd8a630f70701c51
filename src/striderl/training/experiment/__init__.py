"""Runs: their settings, their folders, and how both become a training that can be stopped and goes on.

config_json ─▶ seal ─▶ run_config ─▶ run_folder, run_lock          what a run is, on disk
     runner_config ─▶ log_dir, runner_checkpoints                  the same for a runner of rsl_rl
                        └──▶ loading ─▶ assembly ─▶ run            policies out of folders; training
"""
