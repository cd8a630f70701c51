"""Training: the loop, its parts, and the agent that plays what was trained."""
