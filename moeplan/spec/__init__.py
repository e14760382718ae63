"""What is given: records of models, clusters, workloads and calibrations, and how they are read."""
