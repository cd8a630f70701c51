"""Off-policy actor-critic algorithms.

critic_kinds ─┬─▶ td3 (DDPG) ──────┬─▶ fast_td3 (FastTD3, FastSAC)
              └─▶ sac (REDQ, TQC) ─┤
                                   └─▶ recurrent_sac, which is SAC's alone
crossq, sac_discrete                   each on its own
"""
