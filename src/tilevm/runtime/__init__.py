"""Running programs: the seam between Python and the core."""
