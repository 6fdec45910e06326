"""The machine at hand, as NVML sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.errors import ConfigError
from simulator.interop.format import Account, Format
from simulator.interop.machines.cluster import ImportedCluster, joined_below, node_of_parts, nvlink_of_counts
from simulator.interop.machines.hardware import device_of_product
from simulator.link_generations import MOST_NVLINKS, NODE_PCIE

_SAME_SOCKET = 40  # NVML_TOPOLOGY_NODE; the next level crosses sockets
_BELOW_HOST_BRIDGE = 20  # NVML_TOPOLOGY_MULTIPLE


def import_nvml(*, device: str | None = None, nodes: int = 1, library: Any = None) -> ImportedCluster:
    """Describe the node that this process runs on; ``library`` stands in for ``pynvml``."""
    nvml = library if library is not None else _pynvml()
    try:
        nvml.nvmlInit()
    except Exception as error:
        raise ConfigError(f"NVML does not start: {error}", hint="this needs an NVIDIA driver") from None
    try:
        return _read(nvml, device, nodes)
    finally:
        nvml.nvmlShutdown()


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        raise ConfigError("the package nvidia-ml-py is missing", hint="pip install nvidia-ml-py") from None
    return pynvml


def _read(nvml: Any, device: str | None, nodes: int) -> ImportedCluster:
    account = Account()
    ask = _Asker(nvml, account)
    handles = [ask("nvmlDeviceGetHandleByIndex", i) for i in range(ask("nvmlDeviceGetCount") or 0)]
    handles = [handle for handle in handles if handle is not None]
    if not handles:
        raise ConfigError("NVML sees no GPU", hint="CUDA_VISIBLE_DEVICES does not matter here; the driver has none")
    product = _text(ask("nvmlDeviceGetName", handles[0]))
    memory = getattr(ask("nvmlDeviceGetMemoryInfo", handles[0]), "total", None)
    name = device or device_of_product(product, memory)
    if name is None:
        raise ConfigError(f"no shipped device is a {product!r}", hint="give --device, a shipped name or a file")
    if len({_text(ask("nvmlDeviceGetName", handle)) for handle in handles}) > 1:
        account.assume(f"all GPUs are {product}: the node has several kinds")
    source = f"NVML on this node: {product}, driver {_text(ask('nvmlSystemGetDriverVersion'))}"
    nvlink = _nvlink(ask, handles, name, account)
    levels = {
        (i, j): ask("nvmlDeviceGetTopologyCommonAncestor", handles[i], handles[j])
        for i in range(len(handles))
        for j in range(i)
    }
    below = [pair for pair, level in levels.items() if level is not None and level <= _BELOW_HOST_BRIDGE]
    generation = ask("nvmlDeviceGetMaxPcieLinkGeneration", handles[0])
    switches = joined_below(len(handles), len(handles), below)
    pcie = {"switches": switches} if switches else {}  # NICs, which NVML does not see, may still be near
    if generation in NODE_PCIE:
        pcie["generation"] = generation
    else:
        account.assume("PCIe of the generation that the device has")
    crossing = any(level is not None and level > _SAME_SOCKET for level in levels.values())
    node = node_of_parts(name, len(handles), source, nvlink=nvlink, pcie=pcie, cpu={"sockets": 2 if crossing else 1})
    account.assume("CPU vendor", "no NIC: NVML does not see them")
    data = {"version": 1, "name": "this-node", "nodes": nodes, "node": node}
    return ImportedCluster(data=data, report=account.report(), kind="nvml", file="this machine")


class _Asker:
    """Calls one NVML function; a missing symbol or a refusal is noted and answers None."""

    def __init__(self, nvml: Any, account: Account) -> None:
        self.nvml = nvml
        self.account = account

    def __call__(self, function: str, *arguments: Any) -> Any:
        call: Callable[..., Any] | None = getattr(self.nvml, function, None)
        if call is None:
            self.account.wonder(function)
            return None
        try:
            answer = call(*arguments)
        except Exception:
            self.account.wonder(function)
            return None
        self.account.use(function)
        return answer


def _nvlink(ask: _Asker, handles: list[Any], device: str, account: Account) -> dict[str, Any] | None:
    busids = [_busid(ask("nvmlDeviceGetPciInfo", handle)) for handle in handles]
    size = len(handles)
    counts = [[0] * size for _ in range(size)]
    others: set[str] = set()
    through = [0] * size
    for index, handle in enumerate(handles):
        for link in range(MOST_NVLINKS):
            if ask("nvmlDeviceGetNvLinkState", handle, link) != 1:
                continue
            remote = _busid(ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
            if remote in busids:
                counts[index][busids.index(remote)] += 1
            else:
                others.add(remote)
                through[index] += 1
    if size == 1 and through[0]:
        account.assume(f"{through[0]} NVLinks of the only GPU lead nowhere here")
        return None
    if others:
        counts = [[0 if i == j else min(through) for j in range(size)] for i in range(size)]
    return nvlink_of_counts(counts, device, account, switches=len(others) or None)


def _busid(info: Any) -> str:
    return _text(getattr(info, "busId", "")).lower()[-12:]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


NVML = Format(
    gives="cluster",
    what="this machine, through its driver",
    sniff=lambda _: False,
    read=lambda _path, **options: import_nvml(**options),
    options=("device", "nodes"),
)
