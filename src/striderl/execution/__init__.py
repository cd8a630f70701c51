"""Execution: how a pure function is checked, captured and run (eager, compiled, graphed)."""
