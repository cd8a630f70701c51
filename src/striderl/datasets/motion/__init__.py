"""Motion clips: their fields, files and gait, and windows of them for a discriminator."""
