"""`BasePolicy`, `Collector` and the trainer functions, in the words of Tianshou."""
