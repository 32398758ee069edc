"""`tilevm bench`: operators, subgraphs and models over dynamic shapes, against the peers."""
