"""Host processors: how fast the memory of one socket is.

Rates are raw ones of the memory's channels, 8 bytes wide each, at the speed that the processor is sold for with one module a channel;
STREAM reaches 80 to 95 % of them.

References
----------
AMD, product pages of EPYC 7002, 7003, 9004 and 9005; Intel, product specifications (ark.intel.com) of Xeon E5 v4 and of the Xeon
Scalable processors of all generations. NVIDIA, Grace CPU benchmarking guide (``foundations/STREAM``): triad of 410 to 486 GB/s with
120 GB of LPDDR5X, whose rate is 512 GB/s, of 288 to 342 with 480 GB.
"""

from __future__ import annotations

import re

#: part of a processor's name -> bytes per second of one socket
_SOCKETS: tuple[tuple[str, float], ...] = (
    (r"EPYC 9..5", 12 * 6.0e9 * 8),  # Turin
    (r"EPYC 9", 12 * 4.8e9 * 8),  # Genoa
    (r"EPYC 7", 8 * 3.2e9 * 8),  # Rome and Milan
    (r"Grace", 512e9),
    (r"Xeon E5-26.. v4", 4 * 2.4e9 * 8),  # Broadwell
    (r"Xeon (Platinum 81|Gold 61)|Skylake", 6 * 2.666e9 * 8),
    (r"Xeon (Platinum 82|Gold 62)|Cascade Lake", 6 * 2.933e9 * 8),
    (r"Xeon Platinum 83|Ice Lake", 8 * 3.2e9 * 8),
    (r"Xeon Gold 63", 8 * 2.933e9 * 8),
    (r"Xeon (Platinum 84|Gold 64)|Sapphire Rapids", 8 * 4.8e9 * 8),
    (r"Xeon (Platinum 85|Gold 65)|Xeon of the fifth generation|Emerald Rapids", 8 * 5.6e9 * 8),
    (r"Xeon 67", 8 * 6.4e9 * 8),  # Granite Rapids
)
#: generation of PCI Express -> the same of the first servers that had it: Skylake, Rome and Ice Lake, Sapphire Rapids, Granite Rapids
_BY_GENERATION = {3: 6 * 2.666e9 * 8, 4: 8 * 3.2e9 * 8, 5: 8 * 4.8e9 * 8, 6: 8 * 6.4e9 * 8}


def socket_memory_bytes_per_s(model: str, pcie_generation: int) -> float:
    """Return the raw rate of one socket's memory, reads and writes together: of a processor without a name, by its PCI Express.

    Examples
    --------
    >>> socket_memory_bytes_per_s("EPYC 7742", 4) / 1e9
    204.8
    >>> socket_memory_bytes_per_s("Intel(R) Xeon(R) Platinum 8480C", 5) / 1e9
    307.2
    """
    name = re.sub(r"\((?:r|tm)\)", "", model, flags=re.IGNORECASE)
    known = (rate for pattern, rate in _SOCKETS if re.search(rf"\b(?:{pattern})", name, re.IGNORECASE))
    return next(known, _BY_GENERATION[pcie_generation])
