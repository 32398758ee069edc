"""`tilevm bench`: operators, products, attention, subgraphs and models over dynamic shapes.

Against eager and the peers.
"""

SUITES = ("operators", "products", "attention", "subgraphs", "models", "images")
