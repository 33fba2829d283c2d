"""From a run's configuration to a verl job on a Slurm allocation, and back to the run's two tables."""
