"""A whole training run: days and money, checkpoints and failures, its place on a cluster, and who shares network and storage with it."""
