"""Full shards whose optimizer states are spread over their copies, too: Megatron-FSDP's ``outer_dp_sharding_strategy=optim``.

References
----------
NVIDIA/Megatron-LM of August 2026, ``core/distributed/fsdp/src/megatron_fsdp``: ``megatron_fsdp.py``
(``all_gather_and_wait_parameters_ready``, ``microbatch_count``; ``is_last_microbatch``) says in which micro-batches copies
communicate, ``param_and_grad_buffer.py`` (``all_gather_params``, ``_bucket_group_gradient_reduce``) what they send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.parallel.data import Owners, last_of_each_stream
from simulator.parallel.sharded import FullySharded
from simulator.program.op import Phase
from simulator.program.program import TaskList


class OuterSharded(FullySharded):
    """Full shards within a group; a rank steps its part of one, and copies of the shard exchange theirs once a step.

    Shards of gradients add up on every rank of a group; in the last micro-batch copies reduce-scatter the sums, unit by unit. The
    optimizer leaves each copy with a part of the new parameters, in the precision that they are gathered in: in the first
    micro-batch each unit's shard is gathered from the copies before the unit is gathered from the group. So it is before forward, and
    before backward, too: what forward had is released by then, and the count of micro-batches grows behind backward. The root,
    which stays, is gathered once. Both run on a stream of their own, as far ahead as the gathers of the group.
    """

    copies_collective = "reduce_scatter"

    def all_gather(
        self,
        tasks: TaskList,
        elements: Mapping[Owners, Sequence[int]],
        after: tuple[int, ...],
        phase: Phase,
        micro_batch: int,
    ) -> tuple[int, ...]:
        """Gather tensors from the ranks that share them, in the first micro-batch behind their shards' parts from the copies."""
        last: tuple[int, ...] = ()
        for owners, tensors in elements.items():
            needs, n_elements = after, sum(tensors)
            if micro_batch == 0 and n_elements and self.communicators.size(owners.copies) > 1:
                shard_bytes = n_elements * self.plan.sent_parameter_bytes // self.communicators.size(owners.shard)
                needs = (self.collective(tasks, "all_gather", owners.copies, shard_bytes, after, phase),)
                last += needs
            last += super().all_gather(tasks, {owners: tensors}, needs, phase, micro_batch)
        return last_of_each_stream(tasks, last)
