"""The pure policy for people who write loops the old, stateful way."""
