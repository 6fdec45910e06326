"""What counts as communication in a trace: names of kernels and of collectives, sizes of elements and messages."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simulator.dtypes import element_bytes
from simulator.trace_io.trace_record import CollectiveCall

#: kernels that communicate; the first group holds libraries, the second custom kernels without "nccl" in the name.
#: User annotations never match: only the names of device operations are tested.
COMMUNICATION_KERNELS = (
    r"^(void )?(nccl|rccl|hccl|msccl|oneccl|mscclpp)",
    r"nccl(Dev)?Kernel",
    r"nvshmem|deep_?ep|intranode::(dispatch|combine|notify)|internode(_ll)?::(dispatch|combine|notify|cached_notify)",
    r"multimem_(all|one|two|reduce)|(one|two)_shot_all_?reduce|symm(etric)?_mem|cross_device_reduce|quick_?reduce",
    r"^(gloo|mpi|ucc|xccl):",
    r"allreduce_fusion_kernel|lamport|userbuffers_(fp16|fp8|rs|ag)",
)

#: the project's word -> how frameworks spell it; the first is how PyTorch writes it into traces
FRAMEWORK_NAMES = {
    "all_reduce": ("allreduce", "allreduce_coalesced", "allreduce_sparse"),
    "all_gather": ("_allgather_base", "allgather", "allgather_coalesced", "allgather_into_tensor",
                   "allgather_into_tensor_coalesced", "allgather_object"),
    "reduce_scatter": ("_reduce_scatter_base", "reduce_scatter", "reduce_scatter_tensor",
                       "reduce_scatter_tensor_coalesced", "reduce_scatter_coalesced"),
    "all_to_all": ("all_to_allv", "all_to_all", "all_to_all_base", "all_to_all_single"),
    "broadcast": ("broadcast", "broadcast_oop", "broadcast_coalesced"),
    "reduce": ("reduce", "reduce_oop"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "send": ("send", "isend"),
    "recv": ("recv", "irecv", "recv_any_source"),
    "send_recv": ("pointToPoint", "sendrecv"),
    "barrier": ("barrier", "monitored_barrier"),
}  # fmt: skip
_OPERATION_OF = {
    word.lower().replace("_", ""): operation for operation, words in FRAMEWORK_NAMES.items() for word in words
}

#: word in the name of a kernel -> what it does; tried in this order
KERNEL_NAMES = (
    ("AllReduce", "all_reduce"),
    ("ReduceScatter", "reduce_scatter"),
    ("AllGather", "all_gather"),
    ("AllToAll", "all_to_all"),
    ("Broadcast", "broadcast"),
    ("SendRecv", "send_recv"),
    ("Dispatch", "all_to_all"),
    ("Combine", "all_to_all"),
    ("Barrier", "barrier"),
    ("Reduce", "reduce"),
    ("Send", "send"),
    ("Recv", "recv"),
)
_ANONYMOUS = "(anonymous namespace)::"
#: NCCL runs these as sends and receives
_AS_SEND_RECV = ("all_to_all", "send", "recv", "send_recv")


class CommunicationNames:
    """Decides, with memory, whether a device operation communicates, by the expressions of the user too."""

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self._pattern = re.compile("|".join(f"(?:{p})" for p in (*COMMUNICATION_KERNELS, *extra)), re.IGNORECASE)
        self._known: dict[str, bool] = {}

    def __call__(self, name: str) -> bool:
        """Return whether the operation of this name communicates."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._pattern.search(name[:512]) is not None
        return found


def operation_name(text: str) -> str:
    """Return the project's word for a framework's collective, ``"unknown"`` where there is none.

    Examples
    --------
    >>> operation_name("_allgather_base"), operation_name("c10d::allreduce_"), operation_name("all_to_allv")
    ('all_gather', 'all_reduce', 'all_to_all')
    """
    word = text.rsplit(":", 1)[-1].strip().lower().replace("_", "")
    return _OPERATION_OF.get(word, "unknown")


def kernel_operation(name: str) -> str:
    """Return the collective that a kernel's name tells, ``"unknown"`` where it hides it.

    Examples
    --------
    >>> kernel_operation("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'reduce_scatter'
    >>> kernel_operation("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)")
    'all_reduce'
    """
    head = name.replace(_ANONYMOUS, "").split("(", 1)[0].lower().replace("_", "").replace("sumpostdiv", "")
    return next((operation for word, operation in KERNEL_NAMES if word.lower() in head), "unknown")


def kernel_name(operation: str) -> str:
    """Return the word that names a collective in NCCL's kernels.

    Examples
    --------
    >>> kernel_name("all_to_all"), kernel_name("scatter")
    ('SendRecv', 'Generic')
    """
    if operation in _AS_SEND_RECV:
        return "SendRecv"
    return next((word for word, found in KERNEL_NAMES if found == operation and operation != "barrier"), "Generic")


def message_bytes(collective: str, in_nelems: int, out_nelems: int, dtype: str, group_size: int = 0) -> int:
    """Return the size of a call as nccl-tests counts it: the whole buffer of gathers and scatters; -1 where unknown."""
    size = element_bytes(dtype)
    if collective == "all_gather" and out_nelems <= in_nelems and group_size > 1:
        out_nelems = in_nelems * group_size
    nelems = max(in_nelems, out_nelems)
    return nelems * size if size and nelems >= 0 else -1


def merge_calls(first: CollectiveCall, second: CollectiveCall) -> CollectiveCall:
    """Return ``first`` with what it does not know filled from ``second``."""
    return CollectiveCall(
        collective=first.collective if first.collective not in ("unknown", "send_recv") else second.collective,
        n_bytes=first.n_bytes if first.n_bytes >= 0 else second.n_bytes,
        in_nelems=first.in_nelems if first.in_nelems >= 0 else second.in_nelems,
        out_nelems=first.out_nelems if first.out_nelems >= 0 else second.out_nelems,
        dtype=first.dtype or second.dtype,
        group=first.group or second.group,
        group_size=first.group_size or second.group_size,
        ranks=first.ranks or second.ranks,
        sequence=first.sequence if first.sequence >= 0 else second.sequence,
        peer=first.peer if first.peer >= 0 else second.peer,
        source=first.source if first.n_bytes >= 0 or second.n_bytes < 0 else second.source,
    )
