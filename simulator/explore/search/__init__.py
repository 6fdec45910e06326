"""The search for the best plan: the space of plans, proven bounds of each, simulation in the order of the bounds."""
