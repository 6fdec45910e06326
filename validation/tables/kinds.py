"""The kinds of measurement tables and their columns: what reading, grouping, predicting and writing ask for."""

from __future__ import annotations

from dataclasses import dataclass


def names_of(text: str) -> tuple[str, ...]:
    """Split names that blanks separate."""
    return tuple(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """One kind of measurement table."""

    name: str  #: The stem of the shipped table.
    columns: tuple[str, ...]  #: In the order in which tables have them.
    marks: tuple[str, ...]  #: Columns without which a file is not of this kind.
    measured: str  #: The column of the measured value.
    #: Columns that errors are grouped by unless the user says otherwise; ``size_class`` and ``metric`` are derived.
    groups: tuple[str, ...]
    #: Columns that say in a few words what a row measured; those in :data:`WORDS` without their name.
    described_by: tuple[str, ...]
    predictor: str  #: Module whose ``predict`` predicts the rows.
    also: tuple[str, ...] = ()  #: Columns beside those, which some tables have; any other column is noted as not used.


#: kind -> what it is; of kinds whose marks a header has, the first wins
KINDS: dict[str, TableKind] = {
    kind.name: kind
    for kind in (
        TableKind(
            name="collectives",
            columns=names_of(
                "row_id source topology transport algorithm collective gpus nodes gpus_per_node size_bytes "
                "in_place time_us split notes rel_uncertainty"
            ),
            marks=("collective", "size_bytes", "time_us"),
            measured="time_us",
            groups=("source", "topology", "collective", "nodes", "size_class", "metric"),
            described_by=("collective", "size_bytes", "gpus", "nodes", "topology", "transport"),
            predictor="validation.tables.collective_rows",
            also=("protocol", "dtype", "nccl", "gpus_per_process"),
        ),
        TableKind(
            name="kernels",
            columns=names_of(
                "row_id source device op pass m n k batch heads kv_heads seq_len head_dim causal dtype time_us "
                "split notes"
            ),
            marks=("op", "device", "time_us"),
            measured="time_us",
            groups=("source", "device", "op", "pass", "metric"),
            described_by=("op", "pass", "m", "n", "k", "batch", "heads", "seq_len", "head_dim", "device"),
            predictor="validation.tables.kernel_shapes",
            also=("vocab", "rel_uncertainty"),
        ),
        TableKind(
            name="moe_all_to_all",
            columns=names_of(
                "source topology op gpus nodes gpus_per_node tokens_per_gpu hidden topk experts sms transmit_us notify_us "
                "version"
            ),
            marks=("op", "tokens_per_gpu", "transmit_us"),
            measured="transmit_us",
            groups=("source", "topology", "op", "nodes", "metric"),
            described_by=("op", "tokens_per_gpu", "hidden", "topk", "experts", "sms", "gpus", "nodes", "topology"),
            predictor="validation.tables.dispatch_rows",
            also=("row_id", "split", "notes", "rel_uncertainty"),
        ),
        TableKind(
            name="training",
            columns=names_of(
                "row_id source grade topology architecture model layers hidden heads kv_heads ffn vocab seq_len "
                "gpus precision framework dp tp pp virtual_pp schedule cp ep sharding sequence_parallel "
                "micro_batch global_batch recompute flash_attention metric value rel_uncertainty split notes "
                "kernels vocabulary_parallel float8_recipe"
            ),
            marks=("metric", "value", "topology", "gpus"),
            measured="value",
            groups=("source", "topology", "metric"),
            described_by=names_of("model topology gpus dp tp pp virtual_pp cp micro_batch seq_len"),
            predictor="validation.tables.training_rows",
            also=names_of(
                "release task fsdp pp_layout dispatcher moe_a2a_overlap token_drop mtp cuda_graph_impl cuda_graph_scope "
                "recompute_modules recompute_num_layers offload_modules nccl_ub fused_grouped_mlp recipe recipe_commit "
                "recipe_matches tokens_per_s_per_gpu tflops_per_gpu transport experts top_k head_dim"
            ),
        ),
    )
}
#: whole numbers, and other numbers; what is in neither is text
INTEGERS = frozenset(
    names_of(
        "layers hidden heads kv_heads ffn vocab seq_len gpus dp tp pp virtual_pp cp ep micro_batch "
        "global_batch nodes gpus_per_node size_bytes m n k batch head_dim experts top_k mtp recompute_num_layers "
        "gpus_per_process tokens_per_gpu topk sms"
    )
)
NUMBERS = frozenset(("value", "time_us", "transmit_us", "notify_us", "rel_uncertainty"))
#: columns whose cells need no name beside them
WORDS = frozenset(("op", "pass", "device", "collective", "topology", "transport", "model"))
