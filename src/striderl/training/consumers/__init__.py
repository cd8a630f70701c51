"""Consumers: what happens with the record of each iteration."""
