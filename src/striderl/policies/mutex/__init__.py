"""Several trained policies behind one, chosen by the obstacle ahead."""
