"""Model, Algorithm, Agent and Trainer: training as a generator of log data."""
