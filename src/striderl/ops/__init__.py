"""Pure functions on tensors: the arithmetic that every algorithm and network shares."""
