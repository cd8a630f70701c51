"""Collection: env times policy gives experience."""
