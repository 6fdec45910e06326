"""Many simulations at once: workers on this machine, of a Dask cluster or started by Slurm, and answers that are looked up."""
