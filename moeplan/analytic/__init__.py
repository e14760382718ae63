"""The step of a mesh layout in closed form: seconds without a schedule's order, in milliseconds."""
