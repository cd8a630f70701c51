"""Learners of the values of choices, from replay: DQN, its relatives that learn distributions, and DQN with memory.

dqn ─┬─▶ distributional      C51, QR-DQN, IQN, Rainbow
     └─▶ recurrent_dqn       R2D2
"""
