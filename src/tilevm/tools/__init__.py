"""The command line, the demo, the benchmarks and the tools around them."""
