"""The tool-chains, one a file; only app imports them."""
