"""The overlaps there are: one file per system."""
