"""The executor: runs the program of a plan with torch.distributed. torch lives here only."""
