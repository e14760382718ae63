"""What a cluster is for its readers: words, levels, bandwidths, warnings."""
