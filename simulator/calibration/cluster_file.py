"""Fitted constants into a cluster file, comments and all other keys as they are."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.calibration.cluster_fit import ClusterFit
from simulator.collectives.constants import merge
from simulator.config import read_text, resolve_name
from simulator.errors import CalibrationError
from simulator.interop import import_topology, is_foreign


def fitted_cluster_text(name_or_path: str, fit: ClusterFit, files: Sequence[str | Path]) -> str:
    """Return the cluster's file with the fitted constants in it.

    Parameters
    ----------
    name_or_path : str
        The cluster: a shipped name, our own file, or another tool's.
    fit : ClusterFit
    files : sequence of str or Path
        Where the rows came from, for the source.

    Raises
    ------
    CalibrationError
        If the cluster is an explicit graph, which has no place for constants.
    """
    from ruamel.yaml import YAML

    path = resolve_name(name_or_path, "clusters")
    text = import_topology(path).to_yaml() if is_foreign(path) else read_text(path)
    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    data = yaml.load(text)
    if "vertices" in data:
        raise CalibrationError(f"{name_or_path} is a graph of vertices and edges, which has no constants")
    if "extends" in data and (path.parent / str(data["extends"])).is_file():
        data["extends"] = str((path.parent / str(data["extends"])).resolve())
    source = _source(fit, files)
    inside, between = fit.section("inside"), fit.section("between")
    section = data.setdefault("collectives", {})
    if fit.nccl and not section.get("nccl"):
        section["nccl"] = fit.nccl
    if inside:
        known = section.get("constants") or {}
        section["constants"] = _on_lines(merge(known, {"source": source, "inside": inside}))
    if between:
        transports = data.setdefault("transports", {})
        transport = transports.setdefault(fit.transport, {} if "extends" in data else {"protocol": "rdma"})
        transport["constants"] = _on_lines(merge(transport.get("constants") or {}, {"source": source, **between}))
    section["fit"] = {
        "source": source,
        "held_out": _residuals(fit.after),
        "one_standard_deviation": {constant.name: f"{constant.relative_error:.1%}" for constant in fit.constants},
    }
    out = io.StringIO()
    yaml.dump(data, out)
    return out.getvalue()


def _on_lines(tree: Any) -> Any:
    """Write each list on one line."""
    from ruamel.yaml.comments import CommentedSeq

    if isinstance(tree, Mapping):
        return {key: _on_lines(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        line = CommentedSeq(tree)
        line.fa.set_flow_style()
        return line
    return tree


def _source(fit: ClusterFit, files: Sequence[str | Path]) -> str:
    names = ", ".join(Path(file).name for file in files)
    version = f", NCCL {fit.nccl}" if fit.nccl else ""
    return f"simulate calibrate collectives: {fit.n_fitted} rows of {names}{version}"


def _residuals(after: Mapping[str, Any]) -> dict[str, str]:
    return {
        name.removeprefix("held out, "): f"n={e.n} median {e.median:.1%} p90 {e.p90:.1%} bias {e.bias:+.1%}"
        for name, e in after.items()
        if name.startswith("held out")
    }
