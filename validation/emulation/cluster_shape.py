"""What an emulated cluster looks like: hosts, rates, racks, slow links; checked before it is built."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from simulator.errors import ConfigError

#: all addresses lie in this network, inside the namespaces, and never on the machine itself
SUBNET = "10.77.0.0/24"
_PREFIX = "10.77.0."
MTU_BYTES = 9000
#: bytes of a full frame as the shaper counts them (Ethernet header included), and of its TCP payload
FRAME_BYTES = MTU_BYTES + 14
PAYLOAD_BYTES = MTU_BYTES - 52
MAX_NODES = 64
#: sum of host rates beyond which one machine's processors, not the shapers, set the pace
MAX_TOTAL_BITS_PER_S = 8e9
_BURST_S = 250e-6
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)bit", re.IGNORECASE)
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def parse_rate(text: str) -> float | None:
    """Read a rate as tc writes it.

    ``text`` is ``"1gbit"``, ``"2.5gbit"``, ``"100mbit"``, or ``"none"`` for no shaping.

    Examples
    --------
    >>> parse_rate("2.5gbit")
    2500000000.0
    >>> parse_rate("none") is None
    True
    """
    if text == "none":
        return None
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match.group(1)) <= 0:
        raise ConfigError(f"{text!r} is not a rate", hint="write it as tc does: 100mbit, 1gbit, or none")
    return float(match.group(1)) * _SCALE[match.group(2).lower()]


def parse_slow(text: str) -> tuple[tuple[int, float], ...]:
    """Read slow links: ``"2:500mbit"``, several separated by commas.

    Examples
    --------
    >>> parse_slow("2:500mbit")
    ((2, 500000000.0),)
    """
    pairs = []
    for part in filter(None, text.split(",")):
        host, colon, rate = part.partition(":")
        bits_per_s = parse_rate(rate) if colon and host.strip().isdigit() else None
        if bits_per_s is None:
            raise ConfigError(f"{part!r} is not a slow link", hint="write HOST:RATE, such as 2:500mbit")
        pairs.append((int(host), bits_per_s))
    return tuple(pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """Hosts around one switch, or racks joined by trunks."""

    #: Hosts.
    n_nodes: int
    #: Of every host's link, per direction, Ethernet headers included; None leaves links unshaped.
    rate_bits_per_s: float | None = 1e9
    #: One-way delay added between any two hosts.
    delay_s: float = 0.0
    #: Switches over which the hosts are spread evenly, in order; two share a trunk, more hang on a spine.
    n_racks: int = 1
    #: Rate of each trunk, per direction.
    trunk_bits_per_s: float | None = None
    #: Hosts with another rate, in bits per second.
    slow: tuple[tuple[int, float], ...] = ()
    #: Length of every shaped queue; 0 takes the kernel's own (1000 packets).
    queue_bytes: int = 0
    #: TCP congestion control, set on the hosts' routes (a namespace may not choose every kernel's default).
    congestion: str = "cubic"

    def __post_init__(self) -> None:
        if not 1 <= self.n_nodes <= MAX_NODES:
            raise ConfigError(f"{self.n_nodes} hosts asked for", hint=f"an emulated cluster has 1 to {MAX_NODES}")
        if self.n_racks < 1 or self.n_nodes % self.n_racks:
            raise ConfigError(f"{self.n_nodes} hosts do not fill {self.n_racks} racks evenly")
        if self.trunk_bits_per_s is not None and self.n_racks == 1:
            raise ConfigError("a trunk joins racks, and there is only one", hint="add --racks 2")
        if self.delay_s < 0 or self.queue_bytes < 0:
            raise ConfigError("delay and queue length cannot be negative")
        for host, _ in self.slow:
            if not 0 <= host < self.n_nodes:
                raise ConfigError(f"host {host} cannot be slow: hosts are 0 to {self.n_nodes - 1}")

    def rate_of(self, host: int) -> float | None:
        """Rate of one host's link in bits per second; None without shaping."""
        return dict(self.slow).get(host, self.rate_bits_per_s)

    def rack_of(self, host: int) -> int:
        """Rack in which a host stands."""
        return host // (self.n_nodes // self.n_racks)

    def dilated(self, factor: float) -> ClusterShape:
        """Return the cluster in time that runs slower by a factor: its links look as fast to ranks that do too."""

        def slower(rate: float | None) -> float | None:
            return None if rate is None else rate / factor

        return replace(
            self, rate_bits_per_s=slower(self.rate_bits_per_s), trunk_bits_per_s=slower(self.trunk_bits_per_s),
            delay_s=self.delay_s * factor, slow=tuple((host, rate / factor) for host, rate in self.slow),
        )  # fmt: skip

    @property
    def total_bits_per_s(self) -> float:
        """Sum of all host rates; unshaped links count as 10 Gbit/s."""
        return sum(self.rate_of(host) or 10e9 for host in range(self.n_nodes))


def address(host: int) -> str:
    """IPv4 address of a host, inside its namespace.

    Examples
    --------
    >>> address(0)
    '10.77.0.1'
    """
    return f"{_PREFIX}{host + 1}"


def mac(host: int) -> str:
    """Hardware address of a host, locally administered.

    Examples
    --------
    >>> mac(0)
    '02:00:0a:4d:00:01'
    """
    return f"02:00:0a:4d:00:{host + 1:02x}"


def burst_bytes(rate_bits_per_s: float) -> int:
    """Burst of a shaper: about 250 us of its rate, at least one full frame.

    Examples
    --------
    >>> burst_bytes(1e9)
    31250
    """
    return max(round(rate_bits_per_s / 8 * _BURST_S), FRAME_BYTES + 2)


def goodput_bytes_per_s(rate_bits_per_s: float) -> float:
    """TCP payload per second through a shaper that counts whole frames.

    Examples
    --------
    >>> round(goodput_bytes_per_s(1e9) / 1e6, 2)
    124.08
    """
    return rate_bits_per_s / 8 * PAYLOAD_BYTES / FRAME_BYTES
