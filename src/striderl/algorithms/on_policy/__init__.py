"""On-policy algorithms: policy gradients, their relatives with teachers and experts, and DAgger.

ppo ─▶ estimator_ppo, gail, appo          with estimators, with an expert's steps, with an expert's motions
 │
 └──▶ tppo ◀─ dagger                      with a teacher
a2c, reinforce                            one gradient step per rollout
impala                                    … corrected for the policy that collected it
"""
