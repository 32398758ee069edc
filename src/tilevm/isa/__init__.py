"""The bytecode's instruction table and what is generated from it."""
