"""Q-learning for discrete actions: DQN, its relatives that learn distributions, and DQN with memory.

dqn ─┬─▶ distributional      C51, QR-DQN, IQN, Rainbow
     └─▶ recurrent_dqn       R2D2
"""
