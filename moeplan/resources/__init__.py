"""What a piece of training needs, without seconds: parameters, FLOP, memory, traffic."""
