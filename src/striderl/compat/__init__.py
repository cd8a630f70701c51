"""Old calling styles as thin facades over the core."""
