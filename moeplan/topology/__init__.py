"""The network as a graph, its routes, and the bytes that each link carries."""
