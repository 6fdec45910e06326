"""Parameters that one token meets, as publishers of mixtures of experts count them."""


def n_active_parameters(spec):
    """All of a dense model, ``top_k`` experts of another."""
    if not spec.n_experts:
        return spec.n_parameters
    experts = sum(p.n_elements for p in spec.parameters if p.is_expert)
    mixed = zip(spec.specs_of_blocks, spec.blocks, strict=True)
    counts = [own.n_experts for own, kind in mixed if "E" in kind]
    return spec.n_parameters - experts + experts * spec.top_k * len(counts) // max(1, sum(counts))
