"""The class names of the st_rl line, each a few lines over stages."""
