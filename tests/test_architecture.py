"""The house rules, as tests: import layers, docstrings, sizes, and what starting up may cost."""

import ast
import functools
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import simulator

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for package in ("simulator", "validation") for path in (ROOT / package).rglob("*.py"))
MODULES = sorted(info.name for info in pkgutil.walk_packages(simulator.__path__, "simulator."))

#: the only modules that need PyTorch to be imported
NEEDS_TORCH = ("simulator.models.torch_module",)

#: what ``simulate --help`` must not import: everything that takes long
HEAVY = ("torch", "scipy", "pandas", "plotly", "networkx", "numpy", "simpy", "pydantic", "dask", "perfetto")

MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 700

#: path, or path:function -> why it may be longer
LONGER: dict[str, str] = {}


def run_python(code):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@functools.cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def definitions(node, prefix=""):
    """Yield every function and class below a node with its dotted name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{prefix}{child.name}", child
            yield from definitions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from definitions(child, prefix)


def test_imports_point_downward(monkeypatch):
    """The contracts of setup.cfg: layers, and simpy, networkx, plotly, torch and scipy in their one place."""
    from importlinter.cli import lint_imports

    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr("logging.config.dictConfig", lambda _: None)  # it would silence the loggers of this process
    assert lint_imports(no_cache=True) == 0


#: where JSON is read that this project wrote itself, and where traces of gigabytes are
_OTHER_JSON = {
    "simulator/analysis/confidence.py",
    "simulator/calibration/cluster_fit.py",
    "simulator/collectives/tuner.py",
    "simulator/explore/work/evaluation.py",
    "simulator/trace_io/json_stream.py",
}


@pytest.mark.parametrize(
    ("call", "places"),
    [
        (r"json\.loads?\(", {"simulator/config/text.py", *_OTHER_JSON}),
        (r"tomllib\.loads?\(|ElementTree\.", {"simulator/interop/syntax.py"}),
        (r"\.compose\(", {"simulator/config/yaml_nodes.py"}),
    ],
)
def test_bounds_are_kept_by_one_reader_of_each_syntax(call, places):
    files = (ROOT / "simulator").rglob("*.py")
    assert {name_of(path) for path in files if re.search(call, path.read_text(encoding="utf-8"))} == places


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_public_objects_have_docstrings(path):
    assert ast.get_docstring(parse(path)), f"{name_of(path)} has no docstring"
    missing = [
        name
        for name, node in definitions(parse(path))
        if not any(part.startswith("_") for part in name.split("."))
        and not ast.get_docstring(node)
        and not _is_nested(path, name)
        and not _is_overload(node)
    ]
    assert not missing, f"{name_of(path)}: no docstring on {', '.join(missing)}"


def _is_nested(path, name):
    """Whether a name is defined inside a function, where nothing else can reach it."""
    functions = {n for n, node in definitions(parse(path)) if not isinstance(node, ast.ClassDef)}
    parts = name.split(".")
    return any(".".join(parts[:i]) in functions for i in range(1, len(parts)))


def _is_overload(node):
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_and_modules_are_short(path):
    """Longer ones need a line, and a reason, in LONGER."""
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert n_lines <= MAX_MODULE_LINES or name_of(path) in LONGER, f"{name_of(path)} has {n_lines} lines"
    for name, node in definitions(parse(path)):
        if isinstance(node, ast.ClassDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        key = f"{name_of(path)}:{name}"
        assert length <= MAX_FUNCTION_LINES or key in LONGER, f"{key} has {length} lines"


def test_exceptions_to_the_size_rule_still_exist():
    for key in LONGER:
        path, _, name = key.partition(":")
        assert (ROOT / path).is_file(), key
        assert not name or name in dict(definitions(parse(ROOT / path))), key


def test_public_classes_have_names_of_their_own():
    """A name says one thing in all of the package."""
    places = {}
    for path in SOURCES:
        if name_of(path).startswith("simulator/"):
            for node in parse(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(name_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_help_imports_nothing_heavy():
    done = run_python(
        "import sys\n"
        "sys.argv = ['simulate', '--help']\n"
        "from simulator.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stopped:\n"
        "    assert not stopped.code, stopped.code\n"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def loaded_by(words):
    """The modules that a command line loads."""
    done = run_python(
        "import sys\n"
        f"sys.argv = ['simulate', *{words.split()!r}]\n"
        "from simulator.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stopped:\n"
        "    assert not stopped.code, stopped.code\n"
        "print('LOADED', sorted(sys.modules))\n"
    )
    return set(ast.literal_eval(done.stdout.splitlines()[-1].removeprefix("LOADED ")))


def test_a_collective_loads_neither_plans_of_models_nor_other_commands():
    words = "collective all_reduce --topology selene --gpus 64 --min 1MiB --max 1MiB --network chunk --nccl-algo ring --json"
    loaded = loaded_by(words)
    assert "simulator.network.chunk" in loaded
    others = (
        "simulator.explore",
        "simulator.schedules",
        "simulator.parallel.idle",
        "simulator.cli.exploration",
        "numpy.ma",
    )
    assert not loaded.intersection(others)


def test_the_main_command_loads_no_importers():
    """Nor what whole runs and jobs beside each other are reckoned with: a run on a shipped cluster needs none of them."""
    loaded = loaded_by("--topology bigred200 --model gpt2 --gpus 1 --json")
    assert not {
        "simulator.interop.trainers.megatron_flags", "simulator.interop.trainers.deepspeed",
        "simulator.interop.trainers.torchtitan", "simulator.interop.models.hf_config",
        "simulator.explore.run.training_run", "simulator.explore.run.shared_cluster", "simulator.models.torch_module",
    } & loaded  # fmt: skip


def test_everything_else_imports_without_torch():
    modules = [name for name in MODULES if not name.startswith(NEEDS_TORCH)]
    done = run_python(
        "import importlib, sys\n"
        "sys.modules['torch'] = None\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "importing prints"


def test_the_top_level_holds_what_is_documented():
    """Results of runs were committed with other files once."""
    done = (
        subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
        if shutil.which("git")
        else None
    )
    if done is None or done.returncode or not (ROOT / ".git").exists():
        pytest.skip("not a checkout: what belongs to the repository is known to git alone")
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## What lies at the top")[2]
    documented = set(re.findall(r"`([^`]+)`", section.partition("Nothing else")[0]))
    assert {line.partition("/")[0] for line in done.stdout.splitlines()} == documented


def test_api_page_documents_modules_that_exist():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = [line.split()[-1] for line in text.splitlines() if line.startswith(".. automodule::")]
    assert set(named) <= {"simulator", *MODULES}
