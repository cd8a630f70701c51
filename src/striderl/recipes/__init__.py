"""Settings that learn: one file per family of tasks, functions that return a full config."""
