"""Runs: their settings, their folders, and resumable training built from both.

config_json ─▶ seal ─▶ run_config ─▶ run_folder, run_lock          a run on disk
     runner_config ─▶ log_dir, runner_checkpoints                  the same for a runner of rsl_rl
                        └──▶ loading ─▶ assembly ─▶ run            policies out of folders; training
"""
