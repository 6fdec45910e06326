"""What Transformer Engine, and what NVIDIA's containers bring with it, do from a release on."""

from __future__ import annotations

#: first containers of Transformer Engine 1.11, 2.0 and 2.3
_ENGINE_1_11, _ENGINE_2_0, _ENGINE_2_3 = "24.12", "25.03", "25.07"
#: and of 2.7 and 2.11, and of Megatron's rotation of all packed documents at once
_ENGINE_2_7, _ENGINE_2_11, _MEGATRON_DOCUMENTS = "25.09", "26.02", "26.08"
#: the container whose cuDNN sums the gradients of biases slowly
_SLOW_BIAS_SUMS = "26.06.01"


def is_before(release: str | None, first: str) -> bool:
    """Tell whether a container is older than the first one of something; one that is not named is the newest."""
    return (release or "99") < first


def is_within(release: str | None, span: tuple[str, str]) -> bool:
    """Tell whether a container is the first of a span, or later and before the one that ends it."""
    return not is_before(release, span[0]) and is_before(release, span[1])


class EngineReleases:
    """Facts of the modules of Transformer Engine, for frameworks that call them."""

    __slots__ = ()

    calls_modules: bool

    def rotates_by_document(self, release: str | None) -> bool:
        """Tell whether rotations that are not fused take packed documents one after the other.

        References
        ----------
        NVIDIA/Megatron-LM, ``core/models/common/embeddings/rope_utils.py``: with pull request 5243 of June 2026
        ``_apply_rotary_pos_emb_thd`` reads the lengths on the host and rotates each document by itself; on 22 August 2026 (commit
        d98e8a64) it rotates all of them by a gathered table.
        """
        return self.calls_modules and is_before(release, _MEGATRON_DOCUMENTS)

    def waits_for_gathers(self, release: str | None) -> bool:
        """Tell whether backward waits for the narrow input that it gathers again before it goes on, at a release.

        References
        ----------
        NVIDIA/TransformerEngine, pull request 1620 of April 2025: from 2.0 on the gathered tensor was transposed at once, and its gather
        did not overlap the gradient of the input any more. NeMo's container 25.04 has the commit bee4649c of March (NVIDIA/NeMo v2.3.0,
        ``requirements/manifest.json``), 25.02 an engine before 2.0 and 25.07 one of June.
        """
        return self.calls_modules and is_within(release, (_ENGINE_2_0, _ENGINE_2_3))

    def repacks_experts(self, release: str | None) -> bool:
        """Tell whether rows of experts in eight bits are padded by copying all of them, at a release.

        References
        ----------
        NVIDIA/TransformerEngine, ``pytorch/module/fp8_padding.py``, of September 2024; since pull request 1525 of April 2025 rows that
        need no padding are left alone.
        """
        return self.calls_modules and is_within(release, (_ENGINE_1_11, _ENGINE_2_3))

    def has_early_modules(self, release: str | None) -> bool:
        """Tell whether calls of Transformer Engine cost the host what they did before 2.11: containers before 26.02."""
        return self.calls_modules and is_before(release, _ENGINE_2_11)

    def norms_find_scales(self, release: str | None) -> bool:
        """Tell whether norms find the largest element of what they make, for current scaling: Transformer Engine's since 2.7."""
        return self.calls_modules and not is_before(release, _ENGINE_2_7)

    def permutes_by_scan(self, release: str | None) -> bool:
        """Tell whether sorting tokens by expert visits all experts for every token, as Transformer Engine's kernels did before 2.7."""
        return self.calls_modules and is_before(release, _ENGINE_2_7)

    @staticmethod
    def bias_summing(release: str | None) -> float:
        """By what share of its time a fused product of experts sums the gradient of a bias in its epilogue.

        References
        ----------
        NVIDIA/cudnn-frontend, issue 256 and pull request 322: 139.0 us without the sums, 155.6 with them, and 1,362.8 in its versions
        1.24 and 1.25, which container 26.06.01 has.
        """
        return (1362.8 if release == _SLOW_BIAS_SUMS else 155.6) / 139.0 - 1.0
