"""The three training loops: on-policy, off-policy, offline."""
