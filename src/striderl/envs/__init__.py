"""Environments: the contract, its adapters and the built-in tasks."""
