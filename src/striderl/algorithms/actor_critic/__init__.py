"""Learners with an actor and critics of actions, from replay.

critic_kinds ─┬─▶ td3 (DDPG) ─┬─▶ fast_td3 (FastSAC)
              └─▶ sac (REDQ, TQC) ─▶ recurrent_sac
crossq, sac_discrete
"""
