"""Several trained policies behind one, chosen by what is seen ahead."""
