"""Parts of a model that a plan may name: to recompute, offload, capture, adapt, or leave in another precision."""

#: what Megatron-Core's ``--recompute-modules`` names
RECOMPUTE_MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts")
#: what Megatron-Core's ``--offload-modules`` names
OFFLOAD_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
#: projections that may have adapters
LORA_TARGETS = ("qkv", "proj", "fc1", "fc2")
#: what 8 bits serve beside the products of layers
FP8_MODULES = ("attention", "output", "activation")
#: what of a block may keep 16 bits: projections of attention, the dense and the shared MLP, routed experts, projections around experts
#: that work in a latent, further predictions
BF16_MODULES = ("attention", "mlp", "experts", "latent", "mtp")
#: what Megatron-Core's ``--cuda-graph-scope`` names, and the whole iteration
GRAPH_SCOPES = ("none", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration")
#: whole iterations or modules, as Megatron-Core's user guide has them (``user-guide/features/cuda_graph``): ``--cuda-graph-impl`` and
#: ``--cuda-graph-modules``
MEGATRON_GRAPHS = tuple(scope for scope in GRAPH_SCOPES if scope != "none")
#: blocks that ``torch.compile`` with ``mode="reduce-overhead"`` compiles, which the trainer calls as it likes
COMPILED_GRAPHS = ("attn", "mlp")
