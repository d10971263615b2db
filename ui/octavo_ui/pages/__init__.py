"""One page per file; each has one function that draws it."""
