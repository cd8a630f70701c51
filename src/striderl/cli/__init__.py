"""The command line: text in, runs out."""
