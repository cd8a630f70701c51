"""`PPO` for hand-written loops, in the words of st_rl and rsl_rl 1."""
