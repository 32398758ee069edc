"""The doors: what makes graphs of Python functions and of other frameworks' graphs."""
