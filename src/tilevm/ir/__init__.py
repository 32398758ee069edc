"""The graph: typed tensor operators with symbolic sizes, their text form and their meaning."""
