"""Scripts are read as bash runs them: expectations are what bash 5 prints for the same text."""

import re
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.interop.shell import read_script
from simulator.interop.shell.arithmetic import UnknownError, arithmetic
from simulator.interop.typed_values import is_unknown, readable


def words(text, **more):
    """Return the words of all commands."""
    return [word for command in read_script(text, "run.sh", **more).commands for word in command.words]


def run_by_bash(text, *arguments):
    script = text + '\nrun() { printf "%s\\0" "$@"; }\n'
    lines = text.splitlines()
    script = "run() { printf '%s\\0' run \"$@\"; }\n" + "\n".join(lines)
    done = subprocess.run(["bash", "-c", script, "run.sh", *arguments], capture_output=True, check=True, timeout=10)
    return done.stdout.decode().split("\0")[:-1]


SCRIPTS = {
    "elements of several words": 'A=("--fp8-format hybrid" --x)\nA+=("--y 1")\nrun ${A[@]}',
    "quoted elements stay whole": 'A=("a b" c)\nrun "${A[@]}" "${A[*]}" ${#A[@]} ${A[1]}',
    "an array of itself": 'A=(1 2)\nA=("${A[@]}" 3)\nrun "${A[@]}"',
    "comments and lines in an array": "A=(\n  --a 1  # one\n  # --b 2\n  --c\n)\nrun ${A[@]}",
    "defaults": 'X=\nrun ${X:-a} ${X-b} ${Y:-c d} "${Y:-c d}" ${Z:=e} $Z ${Z:+f} "${X:+g}"',
    "a default with a minus": "run ${X:--1} ${Y:-1}",
    "cut at the ends": "P=/a/b/c.tar.gz\nrun ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P/b/x} ${P//a/y} ${P:3:1} ${#P}",
    "arithmetic": "T=4\nP=2\nrun $((T*P)) $(( (T > 1) ? 1 : 0 )) $(($T/3)) $((T%3)) $((2**3)) $(( -7 / 2 ))",
    "if": "S=8B\nif [ $S = 7B ]; then X=1\nelif [[ $S == *B && $S != 9B ]]; then X=2\nelse X=3\nfi\nrun $X",
    "numbers in tests": "T=4\nif [ $T -gt 1 ] && [ $T -lt 5 ]; then run yes; fi\n[[ $T -eq 5 ]] || run no",
    "case": 'case "a1" in\n  b*) run b ;;\n  a? | c) run a ;;\n  *) run other ;;\nesac',
    "for": 'X=""\nfor i in 1 2 3; do X="$X --n $i"; done\nrun $X',
    "while with shift": """set -- --a 1 --b 2
while [ $# -gt 0 ]; do
  case $1 in
    --a) A=$2; shift ;;
    --b) B=$2; shift ;;
  esac
  shift
done
run $A $B""",
    "functions": 'f() { local x=$1; Y="$x$2"; }\nf a b\nrun $Y $#',
    "positional arguments": 'run $1 ${2} ${3:-x} $# "$@"',
    "strings over several lines": 'O=" \\\n   --a 1 \\\n   --b"\nO="$O --c"\nrun $O',
    "eval": "C=\"run --a 'b c'\"\neval $C",
    "quotations": "run 'a $X' \"b\\\"c\" d\\ e $'f\\tg' \"it's\"",
    "and, or, not": "true && A=1\nfalse || B=2\n! false && C=3\nrun $A $B $C",
    "length and substitution": 'X=abc\nrun ${X^^} "${X:1}" $(echo $X d) $(basename /a/b) $(expr 3 + 4)',
    "let and increments": "i=1\n((i++))\nlet i=i*5\nrun $i",
    "back-quotes in quotation marks": 'A=" --a `expr "1" + "2"` --b "\nrun $A',
    "braces": "for i in {1..7..3} {3..1} {a,b}x; do run $i a{1,2}b; done",
    "declared arrays": 'declare -A M\nM[a]=1\nM["b"]=2\nexport N=3\nrun ${M[a]} ${M[b]} $N',
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_words_are_those_that_bash_makes(text):
    assert words(text, arguments={1: "p", 2: "q"}) == run_by_bash(text, "p", "q")


def test_an_unset_variable_keeps_its_name():
    first, second, third = words("run $NOBODY ${12} $(hostname -f)")[1:]
    assert all(map(is_unknown, (first, second, third)))
    assert [readable(one) for one in (first, second, third)] == ["${NOBODY}", "${12}", "$(hostname -f)"]
    assert words("run $NOBODY ${2}", variables={"NOBODY": "x"}, arguments={2: "y"}) == ["run", "x", "y"]


def test_a_branch_on_what_is_not_known_is_told():
    script = read_script("if [ $ENV = prod ]; then X=1; else X=2; fi\nrun $X", "run.sh")
    assert script.commands[-1].words == ("run", "2")
    assert "line 1" in script.assumed[0]


def test_here_documents_are_kept_with_their_variables():
    text = "S=1\nF=./ds_$ID.json\ncat <<EOT > $F\n{\"stage\": $S}\nEOT\ncat <<'E' > plain\n$S\nE\nrun --deepspeed_config $F"
    script = read_script(text, "run.sh")
    assert script.files[script.commands[-1].words[2]] == '{"stage": 1}'
    assert script.files["plain"] == "$S"


def test_scripts_for_other_shells_and_sourced_files(tmp_path):
    (tmp_path / "common.sh").write_text("L=24\n")
    path = tmp_path / "run.sh"
    text = "source common.sh\nexport CMD=\"train --layers $L\"\nsrun --label bash -c '$LAUNCH --rank $RANK $CMD' 2>&1 | tee log"
    found = read_script(text, str(path)).commands[-1].words
    assert [readable(word) for word in found] == ["${LAUNCH}", "--rank", "${RANK}", "train", "--layers", "24"]


def test_slurm_tells_the_nodes():
    text = "#!/bin/bash\n#SBATCH --nodes=16\n#SBATCH --gres=gpu:4\nrun $SLURM_NNODES $SLURM_GPUS_ON_NODE"
    assert words(text) == ["run", "16", "4"]


@pytest.mark.parametrize(
    "text",
    [
        "X=aaaaaaaaaa\n" + 'X="$X$X"\n' * 40,
        "while true; do :; done",
        "f() { f; }\nf",
        "for i in 1 2 3 4 5 6 7 8 9; do " * 12 + ":" + "; done" * 12,
        "(" * 20_000,
        "X=" + "$(echo " * 41 + "1" + ")" * 41,
        "X=" + "${X:-" * 41 + "1" + "}" * 41,
        "run 'a",
        "if true; then\n",
    ],
)
def test_what_would_eat_the_machine_is_refused(text):
    with pytest.raises(ConfigError):
        read_script(text, "run.sh")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="X1=\"'$(){}[]<>|&;#\\ \nif fi do esac", max_size=80))
def test_any_text_is_read_or_refused(text):
    try:
        read_script(text, "run.sh")
    except ConfigError:
        return


@given(st.integers(0, 50), st.integers(1, 20), st.integers(0, 9))
def test_arithmetic_has_the_precedence_of_c(a, b, c):
    assert arithmetic(f"{a} + {b} * {c} - {a} % {b}", {}.get) == a + b * c - a % b
    assert arithmetic(f"{a} > {b} && {c} || 0", {}.get) == int((a > b and c > 0) or 0)


def test_arithmetic_on_what_is_not_known():
    with pytest.raises(UnknownError) as error:
        arithmetic("2 * GPUS", {}.get)
    assert error.value.name == "GPUS"


UNKNOWN = {
    "a file that a loop reads": (
        "N=6\nwhile read L; do N=$((N+1)); done < base.txt\nrun $N", ["run", "6"], "line 2.*'while'.*N would be set",
    ),
    "a file that an array is made of": ("mapfile -t A < base.txt\nrun ${#A[@]}", ["run", "${#A[@]}"], ""),
    "a loop that counts to it": ("for ((i=0; i<$NODES; i++)); do X=1; done\nrun $i", ["run", "0"], r"line 1.*i<\$NODES"),
    "what a user types": ("read -p 'layers? ' N\nselect x in a b; do M=1; done\nrun $N", ["run", "$(read N)"], "line 2.*select"),
    "what follows a program": ("which nvcc && X=1\nrun ${X:-2}", ["run", "2"], "line 1.*&&.*X would be set"),
    "a number of words": ("for h in $(hosts); do X+=1; done\nrun $X", ["run", "1"], "line 1.*how many words"),
    "names of files": ("A=(*.json)\nrun ${A[@]}", ["run", "*.json"], r"line 1.*\*.json"),
    "a division by nothing": ("N=$((1/0))\nrun $N", ["run", "$((1/0))"], "line 1.*division by 0"),
    "no number": ("N=$((08))\nrun $N", ["run", "$((08))"], "line 1.*no number of base 8"),
    "a pattern that takes for ever": (
        "A=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\n[[ $A =~ ^(a+)+$ ]] && N=1\nrun ${N:-2}", ["run", "2"], "line 2.*for ever",
    ),
    "a case": ("case $(arch) in x*) N=1;; *) N=2;; esac\nrun ${N:-3}", ["run", "3"], "line 1.*case"),
    "an element of it": ("A=($LIST x)\nrun ${A[1]} ${#A[@]}", ["run", "${A[1]}", "${#A[@]}"], ""),
    "what follows it in a word": ("eval run --a '$(pwd)/b' $(pwd)/c", ["run", "--a", "$(pwd)/b", "$(pwd)/c"], ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "note"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_only_a_run_would_tell_is_said_with_its_line(text, expected, note):
    script = read_script(text, "run.sh")
    assert [
        readable(word) for command in script.commands for word in command.words if command.words[0] == "run"
    ] == expected
    assert not note or re.search(note, "\n".join(script.assumed), re.DOTALL)


REFUSED = {
    "more words than any script has": ("\nfor i in {1..1000000000}; do A=$i; done", ":2:1:.*1,000,000,000 words"),
    "braces of braces": ("x=$(echo {a..z}{a..z}{a..z}{a..z}{a..z})", ":1:1:.*words"),
    "a loop without an end": ("\n\nfor ((;;)); do :; done", ":3:1:.*50,000 statements"),
    "a function of itself": ("f() {\n f\n}\nf", ":2:1:.*nested"),
    "a width without an end": ("printf -v N '%1000000000d' 1", ":1:1:.*printf"),
    "coproc": ("\ncoproc x { :; }", ":2:1:.*coproc"),
    "an expansion that is none": ("X=${that is}", ":1:1:.*that is"),
    "a letter of another shell": ("v=x\nX=${v@P}", ":2:1:.*@P"),
    "a loop over three parts that are two": ("for ((i=0;i<3)); do :; done", ":1:1:.*three parts"),
    "a replacement that takes for ever": (
        "A=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\nX=${A//*a*a*a*a*a*a*c/}",
        ":2:1:.*for ever",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_followed_is_refused_with_its_line_and_a_way_out(text, message):
    with pytest.raises(ConfigError, match=f"(?s)run.sh{message}") as error:
        read_script(text, "run.sh")
    assert error.value.hint


FOLLOWED = {
    "a job from a here-document": ("export A=1\nB=2\nsbatch -N 3 <<E\n#!/bin/bash\n#SBATCH --gres=gpu:4\nrun \\$A $B \\$SLURM_NNODES "
                                   "\\$SLURM_GPUS_ON_NODE\nE", ["1", "2", "3", "4"]),
    "a job of one line": ("A=1\nsbatch --wrap \"run $A\"", ["1"]),
    "a list of exported variables": ("export A=1 B=2\nsrun --export=ALL,A=4 bash -c 'run $A $B'", ["4", "2"]),
    "a container": ("A=1\ndocker run -e A=4 image bash -c 'run $A'", ["4"]),
    "another machine": ("A=4\nssh host \"cd x && run $A\"", ["4"]),
    "a script that submits itself": ("run 1\nsbatch run.sh", ["1"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), FOLLOWED.values(), ids=FOLLOWED)
def test_what_is_started_elsewhere_gets_what_the_script_says(text, expected):
    commands = read_script(text, "run.sh").commands
    assert [list(one.words[1:]) for one in commands if one.words[0] == "run"] == [expected]


def test_a_variable_that_is_not_exported_is_told():
    script = read_script("A=1\nbash -c 'run ${A:-2}'", "run.sh")
    assert script.commands[-1].words == ("run", "2")
    assert "A is not exported" in script.assumed[0]


def test_scripts_beside_the_script_are_followed(tmp_path):
    (tmp_path / "w.sh").write_text("#!/bin/bash\nrun $1\n")
    found = read_script("bash w.sh 1\nsrun -l ./w.sh 2\n./w.sh 3", str(tmp_path / "run.sh")).commands
    assert [one.words[1] for one in found if one.words[0] == "run"] == ["1", "2", "3"]


def test_what_nothing_asks_for_and_what_is_not_followed_is_kept():
    script = read_script(
        "run $1 $A\nsbatch job.sh", "run.sh", arguments={1: "x", 2: "y"}, variables={"A": "1", "B": "2"}
    )
    assert script.unused == ["B", "$2"]
    assert script.unfollowed == [(2, "sbatch job.sh")]


@pytest.mark.parametrize(
    "text",
    [
        "declare -A M; for ((i=0;i<4000;i++)); do M[$i]=$i; done",
        "A=({1..50000})\nfor ((i=0;i<100;i++)); do n=${A[i]}; m=${#A[@]}; done",
    ],
)
def test_large_arrays_take_no_square_of_their_length(text):
    before = time.process_time()
    read_script(text, "run.sh")
    assert time.process_time() - before < 3


@pytest.mark.parametrize(
    "text",
    [
        'A=(a b); for i in {1..60}; do A=("${A[@]}" "${A[@]}"); done',
        'A=({1..20000})\nfor ((i=0;i<2000;i++)); do B=("${A[@]:1}"); done',
        "set -- {1..40000}\nwhile (( $# > 20000 )); do shift; done",
    ],
)
def test_what_copies_large_arrays_is_refused_early(text):
    before = time.process_time()
    with pytest.raises(ConfigError):
        read_script(text, "run.sh")
    assert time.process_time() - before < 5
