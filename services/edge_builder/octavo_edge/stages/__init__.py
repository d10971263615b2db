"""The steps of a build, one a file; only app imports them."""
