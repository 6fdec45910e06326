"""Machines as other tools show them: drivers, hwloc, NCCL, fabrics, schedulers and other simulators."""
