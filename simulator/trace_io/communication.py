"""What counts as communication in a trace: kernel names, operation names, element sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simulator.trace_io.record import CollectiveCall

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

_OPERATIONS = {
    "all_reduce": ("allreduce", "allreducecoalesced", "allreducesparse"),
    "all_gather": ("allgather", "allgatherbase", "allgathercoalesced", "allgatherintotensor",
                   "allgatherintotensorcoalesced", "allgatherobject"),
    "reduce_scatter": ("reducescatter", "reducescatterbase", "reducescattertensor",
                       "reducescattertensorcoalesced", "reducescattercoalesced"),
    "all_to_all": ("alltoall", "alltoallv", "alltoallbase", "alltoallsingle"),
    "broadcast": ("broadcast", "broadcastoop", "broadcastcoalesced"),
    "reduce": ("reduce", "reduceoop"),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "send": ("send", "isend"),
    "recv": ("recv", "irecv", "recvanysource"),
    "send_recv": ("sendrecv", "pointtopoint"),
    "barrier": ("barrier", "monitoredbarrier"),
}  # fmt: skip
_OPERATION_OF = {word: operation for operation, words in _OPERATIONS.items() for word in words}

_KERNEL_WORDS = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
    ("barrier", "barrier"),
    ("reduce", "reduce"),
    ("send", "send"),
    ("recv", "recv"),
)

_ELEMENT_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "longint": 8, "complexfloat": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4, "unsignedint": 4, "uint32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "shortint": 2, "int16": 2, "uint16": 2,
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "unsignedchar": 1, "signedchar": 1,
}  # fmt: skip


class CommunicationNames:
    """Decides, with memory, whether a device operation communicates.

    Parameters
    ----------
    extra : sequence of str
        Regular expressions of the user, tried beside :data:`COMMUNICATION_KERNELS`.
    """

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
    """
    head = name.split("(", 1)[0].lower().replace("_", "").replace("sumpostdiv", "")
    return next((operation for word, operation in _KERNEL_WORDS if word in head), "unknown")


def element_bytes(dtype: str) -> int:
    """Return the bytes of one element of a framework's dtype, 0 where unknown.

    Examples
    --------
    >>> element_bytes("c10::BFloat16"), element_bytes("Tensor(long int)"), element_bytes("Float8_e4m3fn")
    (2, 8, 1)
    """
    word = dtype.rsplit("(", 1)[-1].rstrip(")]").rsplit(":", 1)[-1].replace(" ", "").lower()
    if word.startswith("float8"):
        return 1
    return _ELEMENT_BYTES.get(word, 0)


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
