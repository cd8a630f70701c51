"""rlpyt's agents, algorithms and runners over the core."""
