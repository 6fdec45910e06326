"""An emulated cluster: network namespaces as hosts, shaped veth links between them, real jobs on top."""
