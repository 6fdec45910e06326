"""All algorithms by name; a new one is a file with functions from ranks to a table, and a line here."""

from __future__ import annotations

from collections.abc import Callable

from simulator.collectives import binomial, gloo, nvls, pairwise, ring, tree
from simulator.collectives.table import Table

Maker = Callable[[int], Table]

#: algorithm -> collective -> function from the number of ranks to the table
ALGORITHMS: dict[str, dict[str, Maker]] = {
    "ring": {
        "all_reduce": ring.all_reduce,
        "all_gather": ring.all_gather,
        "reduce_scatter": ring.reduce_scatter,
        "broadcast": ring.broadcast,
        "reduce": ring.reduce,
    },
    "tree": {"all_reduce": tree.all_reduce},
    "nvls": {
        "all_reduce": nvls.all_reduce,
        "all_gather": nvls.all_gather,
        "reduce_scatter": nvls.reduce_scatter,
    },
    "binomial": {
        "all_reduce": binomial.all_reduce,
        "all_gather": binomial.all_gather,
        "reduce_scatter": binomial.reduce_scatter,
        "broadcast": binomial.broadcast,
        "reduce": binomial.reduce,
    },
    "pairwise": {
        "all_to_all": pairwise.all_to_all,
        "gather": pairwise.gather,
        "scatter": pairwise.scatter,
        "send_recv": pairwise.send_recv,
    },
    "gloo": {
        "all_reduce": gloo.all_reduce,
        "all_gather": gloo.all_gather,
        "reduce_scatter": gloo.reduce_scatter,
        "broadcast": gloo.broadcast,
        "reduce": gloo.reduce,
        "all_to_all": gloo.all_to_all,
        "gather": gloo.gather,
        "scatter": gloo.scatter,
        "send_recv": gloo.send_recv,
    },
}
