"""One page per file; each has one function that draws it.

Not named `pages`: Streamlit takes a folder of that name for pages of its own, and would show these files, which draw
nothing by themselves, to whoever opens another address than / first.
"""
