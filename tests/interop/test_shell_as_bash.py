"""Scripts give the words that bash gives: every expectation is what bash itself makes of the same text."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.interop.shell import read_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash here to compare with")

#: what both get: arguments of the script, and its environment
ARGUMENTS, ENVIRONMENT = ("p", "q r"), {"HOME": "/home/me"}


def by_bash(text, folder):
    """The words of every ``run``, each with its arguments, as bash makes them."""
    path = folder / "run.sh"
    command = folder / "bin" / "run"
    if not command.exists():
        command.parent.mkdir()
        command.write_text("#!/bin/sh\nprintf '%s\\0' run \"$@\"\n")
        command.chmod(0o755)
    path.write_text("run() { printf '%s\\0' run \"$@\"; }\n" + text + "\n")
    done = subprocess.run(
        [BASH, "run.sh", *ARGUMENTS],
        capture_output=True,
        check=False,
        timeout=20,
        cwd=folder,
        env=ENVIRONMENT | {"PATH": f"{command.parent}:{os.defpath}", "LC_ALL": "C"},
    )
    return done.stdout.decode().split("\0")[:-1]


def by_reader(text):
    arguments = dict(enumerate(ARGUMENTS, start=1))
    commands = read_script(text, "run.sh", arguments=arguments, variables=ENVIRONMENT).commands
    return [word for command in commands if command.words[0] == "run" for word in command.words]


SNIPPETS = dict(
    part.split("\n", 1)
    for part in (Path(__file__).parent / "as_bash.txt").read_text(encoding="utf-8").split("\n### ")[1:]
)


@pytest.mark.parametrize("text", SNIPPETS.values(), ids=SNIPPETS)
def test_words_are_those_of_bash(text, tmp_path):
    assert by_reader(text) == by_bash(text, tmp_path)


# ---- generated scripts -----------------------------------------------------------------------------------

NUMBERS = st.integers(-3, 12).map(str)
NAMES = st.sampled_from("abc")


def expressions(inner):
    pairs = st.tuples(inner, st.sampled_from(["+", "-", "*", "<", "==", "&&", "||", "|", "^", ","]), inner)
    return pairs.map(lambda one: f"({one[0]} {one[1]} {one[2]})") | st.tuples(inner, inner, inner).map(
        lambda one: f"({one[0]} ? {one[1]} : {one[2]})"
    )


ARITHMETIC = st.recursive(
    NUMBERS | NAMES | st.sampled_from(["0x1f", "017", "A[1]", "a++", "--b", "c%7"]), expressions, max_leaves=5
)
TEXTS = st.sampled_from(
    ["$a", '"$b $c"', "${a:-x}", '"${A[@]}"', "${A[*]}", "${#A[@]}", "${A[@]:1:2}", '"${A[*]:0:2}"', "x{1..3}", "{a,b}$c", "'a b'",
     '"${b/1/-}"', "${c//[0-9]/x}", "$#", '"$@"', "${1-none}", "$(echo $a $b)", "${a#-}", "${b%?}", "${#c}", "w"]
)  # fmt: skip
SIMPLE = (
    st.tuples(NAMES, ARITHMETIC).map(lambda one: f"{one[0]}=$(({one[1]}))")
    | st.tuples(NAMES, NUMBERS).map(lambda one: f"{one[0]}={one[1]}")
    | st.tuples(TEXTS, TEXTS).map(lambda one: f"A+=({one[0]} {one[1]})")
    | st.tuples(TEXTS, TEXTS).map(lambda one: f"run {one[0]} {one[1]}")
    | st.tuples(st.integers(0, 4), NAMES).map(lambda one: f"A[{one[0]}]=${one[1]}")
    | st.tuples(TEXTS, TEXTS).map(lambda one: f"set -- {one[0]} {one[1]}")
    | st.tuples(NAMES, TEXTS).map(lambda one: f'read -r x y <<< "$(echo {one[1]})"; {one[0]}=${{#x}}${{#y}}')
    | st.sampled_from(
        [
            "f 3",
            "f $a $b",
            "shift",
            "X=$(f 1)",
            "break",
            "continue",
            "return 2",
            ": $((a++))",
            "a=1 true",
            "unset 'A[1]'",
        ]
    )
)


def compounds(inner):
    bodies = st.lists(inner, min_size=1, max_size=3).map("\n".join)
    conditions = ARITHMETIC.map(lambda one: f"(({one}))") | st.tuples(NAMES, NUMBERS).map(
        lambda one: f"[ ${one[0]} -lt {one[1]} ]"
    )
    return (
        st.tuples(conditions, bodies, bodies).map(lambda one: f"if {one[0]}; then\n{one[1]}\nelse\n{one[2]}\nfi")
        | st.tuples(TEXTS, bodies).map(lambda one: f"for i in {one[0]}; do\n{one[1]}\ndone")
        | bodies.map(lambda one: f"for ((k=0; k<2; k++)); do\n{one}\ndone")
        | bodies.map(lambda one: f"(\n{one}\n)")
        | st.tuples(NAMES, bodies, bodies).map(
            lambda one: f"case ${one[0]} in\n-*) {one[1]} ;&\n[1-4]) {one[2]} ;;\nesac"
        )
        | st.tuples(conditions, inner, inner).map(lambda one: f"{one[0]} && {one[1]} || {one[2]}")
        | st.tuples(NAMES, bodies).map(
            lambda one: f"{{ g() {{\nlocal {one[0]}=4 n=$1\n((n > 5)) && return\n{one[1]}\n}}\ng $b\n}}"
        )
    )


STATEMENTS = st.lists(st.recursive(SIMPLE, compounds, max_leaves=6), min_size=1, max_size=6).map("\n".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scripts")


@settings(max_examples=150, deadline=None)
@given(statements=STATEMENTS)
def test_any_script_gives_the_words_of_bash(folder, statements):
    text = (
        "a=1 b=2 c=3 x= y=\nA=(5 6)\nf() { run f $1; }\n" + statements + '\nrun "$a" "$b" "$c" "${A[@]}" ${#A[@]} "$@"'
    )
    assert by_reader(text) == by_bash(text, folder)
