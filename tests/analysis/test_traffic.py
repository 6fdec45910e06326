"""What stays in a node or rack and what leaves it: by kind of communication, against its bytes and the links' own."""

import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.analysis.link_use import domain_word
from simulator.topology import LINK_KINDS


def traffic(topology, model, **plan):
    result = simulate(Scenario(topology=topology, model=model, plan=ParallelPlan(**plan)))
    return result, {(row.collective, row.axis): row for row in result.traffic}


def test_pipelines_leave_the_node_and_tensor_parallelism_does_not():
    """Of two nodes, one stage each: the output of 4 micro-batches goes forward and its gradient back, an eighth from each rank.

    Narayanan et al., arXiv:2104.04473, section 4.1 (scatter/gather).
    """
    result, found = traffic(
        "dgx-h100",
        "gpt-1.3b",
        gpus=16,
        tp=8,
        pp=2,
        micro_batch=2,
        global_batch=8,
        framework="megatron",
        precision="bf16",
    )
    assert found["all_reduce", "tp"].nic_bytes == 0 < found["all_reduce", "tp"].nvlink_bytes
    payload = 4 * 2 * (2 * 2048 * 2048 * 2)
    sent = found["send_recv", "pp"]
    assert sent.nvlink_bytes == 0
    assert payload <= sent.nic_bytes <= 1.25 * payload, "packets have headers"
    assert domain_word(result.topology) == "node"


def test_kinds_of_communication_add_up_to_what_the_links_carry():
    """Every byte that leaves through a network card enters through another: half of what both carry."""
    result, found = traffic(
        "gb200-nvl72", "qwen3-30b-a3b", gpus=128, ep=32, micro_batch=1, global_batch=128, sequence_length=1024
    )
    arrays = result.topology.arrays
    nic = LINK_KINDS.index("nic")
    carried = sum(s * arrays.bandwidth_bytes_per_s[i] for i, s in result.link_busy_s.items() if arrays.kind[i] == nic)
    assert sum(row.nic_bytes for row in found.values()) == pytest.approx(carried / 2)
    assert len(found) == len(result.traffic) and domain_word(result.topology) == "rack"
    experts = [row for row in result.traffic if row.axis.startswith("ep")]
    assert experts and all(row.nic_bytes == 0 < row.nvlink_bytes for row in experts)


def test_gathered_and_scattered_parameters_share_links_by_their_bytes():
    """FSDP2 on eight GPUs: each scatters 7/8 of GPT-2 large's gradients, and gathers its 16-bit weights twice, the root's once.

    What is sent is counted as links carry it: packets and the protocol take up to 40 % beside the payload.
    """
    n_parameters, root = 774_030_080, (50257 + 1024 + 2) * 1280
    _, found = traffic(
        "dgx-h100", "gpt2-large", gpus=8, sharding="zero3", framework="fsdp", micro_batch=1, sequence_length=1024
    )
    gathered, scattered = (found[name, "shard"].nvlink_bytes for name in ("all_gather", "reduce_scatter"))
    assert gathered / scattered == pytest.approx(2 - root / n_parameters, rel=1e-3)
    assert 1.0 <= scattered / (7 * 2 * n_parameters) <= 1.4


@pytest.mark.parametrize("pipeline", [{}, {"pp": 2}, {"pp": 2, "virtual_pp": 4}, {"pp": 4, "global_batch": 128}])
def test_stages_send_together_what_one_stage_sends(pipeline):
    """Mixtral's 32 layers send both experts' copies of every token out and back, and so their gradients: seven eighths leave a rank.

    Links carry up to 40 % more, packets and the protocol.
    """
    plan = {"gpus": 32, "ep": 8, "micro_batch": 1, "global_batch": 64, "sequence_length": 512} | pipeline
    _, found = traffic("dgx-h100", "mixtral-8x7b", framework="megatron-core", moe_dispatcher="alltoall", **plan)
    payload = 32 * 4 * plan["global_batch"] * 512 * 2 * (4096 * 2) * 7 / 8
    sent = found["all_to_all", "ep"]
    assert sent.nic_bytes == 0
    assert payload <= sent.nvlink_bytes <= 1.4 * payload
