"""Experience that was recorded before: filled replays, and their folders."""
