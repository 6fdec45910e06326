"""A machine as NVIDIA's management library describes it to the process that runs on it."""

import types

import pytest

from simulator.errors import ConfigError
from simulator.interop.machines.nvml import import_nvml


def fake_nvml(n_gpus=8, **missing):
    """A library that answers like eight H100 behind four NVSwitches."""

    class NotSupportedError(Exception):
        pass

    def remote(handle, link):
        if link >= 18:
            raise NotSupportedError
        return types.SimpleNamespace(busId=f"00000000:C{link % 4}:00.0".encode())

    library = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: n_gpus,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=85e9),
        nvmlDeviceGetPciInfo=lambda handle: types.SimpleNamespace(busId=f"00000000:0{handle}:00.0"),
        nvmlSystemGetDriverVersion=lambda: b"1.2",
        nvmlDeviceGetNvLinkState=lambda handle, link: 1,
        nvmlDeviceGetNvLinkRemotePciInfo=remote,
        nvmlDeviceGetTopologyCommonAncestor=lambda a, b: 20 if a // 2 == b // 2 else 40 if a // 4 == b // 4 else 50,
        nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 5,
    )
    for name in missing:
        delattr(library, name)
    return library


def test_nvml_of_a_node_with_nvswitches():
    cluster = import_nvml(library=fake_nvml())
    node = cluster.spec().node
    assert (node.gpus, node.device, node.nvlink.kind) == (8, "h100-sxm5-80g", "switch")
    assert (node.nvlink.links_per_gpu, node.nvlink.switches) == (18, 4)
    assert (node.pcie.generation, node.pcie.switches, node.cpu.sockets) == (5, 4, 2)
    assert cluster.topology().route(0, 7)


def test_nvml_with_missing_symbols_still_answers():
    cluster = import_nvml(library=fake_nvml(nvmlDeviceGetNvLinkState=1, nvmlDeviceGetMaxPcieLinkGeneration=1))
    assert cluster.spec().node.nvlink is None
    assert "nvmlDeviceGetNvLinkState" in cluster.report.unknown


def test_nvml_without_a_gpu_or_a_driver():
    with pytest.raises(ConfigError, match="sees no GPU"):
        import_nvml(library=fake_nvml(0))

    def fails():
        raise OSError("no library")

    with pytest.raises(ConfigError, match="does not start"):
        import_nvml(library=types.SimpleNamespace(nvmlInit=fails))
