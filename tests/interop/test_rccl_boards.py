"""Boards of AMD and network cards in the XML that RCCL dumps, written here by hand after its form."""

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_topology


@pytest.fixture
def brought(tmp_path):
    def bring(kind, text, **options):
        file = tmp_path / "picture.xml"
        file.write_text(text)
        return import_topology(file, kind, **options)

    return bring


def rccl_xml(gcn, units, device="", nets=("200000",)):
    """Two GPUs of AMD's, a link of Infinity Fabric between them."""
    identity = f'vendor="0x1002" device="{device}"' if device else ""
    gpus = "".join(
        f'<pci busid="0000:{a}:00.0" class="0x038000" {identity} link_speed="16 GT/s" link_width="16">'
        f'<gpu dev="{n}" sm="{units}" gcn="{gcn}" arch="38911" rank="{n}" gdr="1">'
        f'<xgmi target="0000:{b}:00.0" count="1" tclass="0x038000"/></gpu></pci>'
        for n, (a, b) in enumerate((("43", "23"), ("23", "43")))
    )
    nics = "".join(f'<net name="mlx5_{n}" dev="{n}" speed="{speed}" port="1"/>' for n, speed in enumerate(nets))
    return f"""<system version="2"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD">{gpus}
    <pci busid="0000:90:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"><nic>{nics}</nic></pci></cpu></system>"""


@pytest.mark.parametrize(
    ("gcn", "units", "identity", "device", "rate"),
    [
        ("906", 60, "", "mi50", 46e9),
        ("906", 64, "", "mi60", 46e9),
        ("908", 120, "0x738c", "mi100", 46e9),  # three links: 276 GB/s both ways (data sheet)
        ("910", 104, "0x740f", "mi210", 50e9),
        ("gfx90a:sramecc+", 110, "", "mi250x", 50e9),
        ("940", 228, "0x74a0", "mi300a", 64e9),
        ("gfx942", 304, "0x74a1", "mi300x", 64e9),  # seven links: 896 GB/s both ways
    ],
)
def test_rccl_tells_the_board_by_pci_id_or_compute_units(brought, gcn, units, identity, device, rate):
    node = brought("nccl-topo", rccl_xml(gcn, units, identity)).spec().node
    assert (node.device, node.gpus, node.nics.count) == (device, 2, 1)
    assert node.nvlink.bandwidth_per_link_bytes_per_s == pytest.approx(rate)


def test_a_board_that_is_not_shipped_is_asked_for(brought):
    with pytest.raises(ConfigError, match="gfx906 with 56 compute units") as error:
        brought("nccl-topo", rccl_xml("906", 56))
    assert "--device" in error.value.hint
    assert brought("nccl-topo", rccl_xml("906", 56), device="mi50").spec().node.device == "mi50"


def test_nics_of_several_rates_are_asked_for(brought):
    text = rccl_xml("908", 120, nets=("200000", "1000", "200000"))
    with pytest.raises(ConfigError, match=r"NICs of 1 Gb/s, 200 Gb/s"):
        brought("nccl-topo", text)
    nics = brought("nccl-topo", text, nic_bandwidth="200 Gb/s").spec().node.nics
    assert (nics.count, nics.bandwidth_bytes_per_s) == (2, 25e9)
    with pytest.raises(ConfigError, match=r"no NIC of 100 Gb/s"):
        brought("nccl-topo", text, nic_bandwidth="100 Gb/s")
