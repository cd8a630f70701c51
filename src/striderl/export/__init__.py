"""Export: a trained policy as one bundle that runs without this library."""
