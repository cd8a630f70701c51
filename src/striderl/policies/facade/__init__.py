"""The pure policy behind a stateful interface, for hand-written loops."""
