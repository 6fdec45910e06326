"""Measurements that other tools print: collectives, links and steps of training runs."""
