"""The search: bounds, relaxation, integer program, best first; cvxpy and highspy are imported here only."""
