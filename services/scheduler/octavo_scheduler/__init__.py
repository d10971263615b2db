"""The scheduler: decides which worker runs which job. Knows nothing of text, nor of what tokens mean."""
