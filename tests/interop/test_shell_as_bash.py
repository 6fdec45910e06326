"""Scripts give the words that bash gives: every expectation is what bash itself makes of the same text."""

import os
import shutil
import subprocess

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
    path.write_text("run() { printf '%s\\0' run \"$@\"; }\n" + text + "\n")
    done = subprocess.run(
        [BASH, "run.sh", *ARGUMENTS],
        capture_output=True,
        check=False,
        timeout=20,
        cwd=folder,
        env=ENVIRONMENT | {"PATH": os.defpath, "LC_ALL": "C"},
    )
    return done.stdout.decode().split("\0")[:-1]


def by_reader(text):
    arguments = dict(enumerate(ARGUMENTS, start=1))
    commands = read_script(text, "run.sh", arguments=arguments, variables=ENVIRONMENT).commands
    return [word for command in commands if command.words[0] == "run" for word in command.words]


SNIPPETS = {
    "a loop that counts": "for ((i=0;i<3;i++)); do A+=x$i; done\nrun $A $i",
    "a loop that counts two": "A=-\nfor ((i=0, j=10; i<j; i+=3, j--)); do A=$A:$i:$j; done\nrun $A",
    "a loop without parts": "i=0\nfor ((;;)) {\n((++i > 4)) && break\n}\nrun $i",
    "ranges": "run {1..10..3} {01..05} {a..e..2} {5..1} {-2..2} {1..3}x{,y} {10..1..4} {z..w}",
    "braces in braces": "run x{a,b{1,2}}y {a,b}{c,d} {} {a} '{a,b}' \"{a,b}\" {a,} \\{a,b} {a..} {1..b}",
    "a long range": "N=0\nfor i in {1..20000}; do N=$((N+i)); done\nrun $N",
    "local variables": "Y=1\nf() { local X=2 Y; Y=3; Z=4; run $X $Y; }\nX=1\nf\nrun $X $Y $Z",
    "local variables of callers": 'g() { v=$v+; run $v; }\nf() { local v=in; g; run $v; }\nv=out\nf\nrun $v',
    "a local array": 'a=x b=y\nf() { local -a a=(1 2 3); local b="${a[*]}" c; c=${#a[@]}; run "$b" $c; }\nf\nrun "${a[@]}" "$b"',
    "a local of itself": 'v=1\nf() { local v=$v$v; run $v; }\nf\nA=(1 2)\ng() { local A=("${A[@]}" 3); run ${A[@]}; }\ng\nrun $v ${A[@]}',
    "subshells": "X=1\n( X=2; run $X; exit 3 )\nrun $? $X\n{ X=5; }\nrun $X",
    "the background": "X=3\nX=4 & wait\nrun $X",
    "slices of arrays": 'A=(a b c d e)\nrun "${A[@]:1:2}" "${A[@]: -2}" ${A[@]:3} "${@:2}" "${@:1:1}" "${@: -1}" "${@:0:1}"',
    "cases that fall through": "case ab in a*) run 1 ;& b*) run 2 ;; *) run 3 ;; esac\ncase ab in a*) run 4 ;;& x) run 5 ;; *b) run 6 ;;& *) run 7 ;; esac",
    "patterns of cases": 'case "x y" in "x y") run 1;; esac\ncase 5 in [0-4]) run 2;; [!0-4]) run 3;; esac\ncase abc in (a|b) run 4;; (abc) run 5;; esac\ncase "" in ?*) run 6;; *) run 7;; esac',
    "arrays with keys": 'declare -A M=([a]=1 [b c]=2 ["d"]=3)\nM[z]=9\nM[a]+=x\nk=z\nfor i in "${!M[@]}"; do run "$i" "${M[$i]}"; done\nrun ${#M[@]} "${M[@]}" ${M[$k]} ${M[no]:-none}\nunset "M[a]"\nrun ${#M[@]}',
    "many keys": 'declare -A M\nfor i in {1..40}; do M[key$i]=$i; done\nrun "${M[@]}" "${!M[@]}"',
    "sparse arrays": 'A=([3]=d [1]=b x)\nrun "${A[@]}" "${!A[@]}"\nA+=([0]=a y)\nrun "${A[@]}" "${!A[@]}" ${A[-1]}\nA=x\nrun "${A[@]}"\nunset "A[1]"\nrun ${#A[@]} ${!A[@]}',
    "operations on elements": 'A=(1.a 2.b 3.a)\nrun "${A[@]/#/--x }" "${A[@]/%/.y}" "${A[@]/.a/z}" ${A[@]%.a} "${A[@]#*.}" ${A[@]^^} ${#A[0]}',
    "joined by IFS": 'A=(1 2 3)\nIFS=,\nrun "${A[*]}" ${A[*]} "${A[@]}"\nB="${A[*]}"\nunset IFS\nrun "${A[*]}" $B',
    "empty arrays": 'A=()\nrun "${A[@]}" x ${#A[@]} "${A[@]:-none}" "${A[*]}"\nA+=(q)\nrun ${A[@]} "${A[@]:+yes}"',
    "read from a text": 'IFS=, read -r A B C <<< "1,24,3,4"\nrun "$A" "$B" "$C"\nread A B <<< "  x   y  z  "\nrun "$A" "$B"\nread -r <<< "  x\\ty "\nrun "$REPLY"\nread A <<< ""\nrun $? "$A"',
    "read into an array": 'IFS=, read -r -a P <<< "1,,24,3,"\nrun "${P[@]}" ${#P[@]}\nIFS=";" read -ra Q <<< "x;y z"\nrun "${Q[@]}"',
    "read with marks and blanks": 'IFS=": " read -r a b <<< "x : y : z "\nrun "$a" "$b"\nIFS=: read -r a b <<< "x:y:"\nrun "$a" "$b"\nIFS=: read -r a b <<< " x :y: z:"\nrun "$a" "$b"',
    "loops that read": "while IFS='=' read -r k v; do run \"$k\" \"$v\"; done <<< $'a=1\\nb=2=3'\nprintf '%s\\n' a b | while read x; do Y=$x; done\nY=-\nwhile read x; do Y+=$x; done < <(printf '%s\\n' a b)\nrun $Y",
    "files of its own": "cat > f.txt <<'EOF'\none\ntwo $x\nEOF\necho three >> f.txt\nmapfile -t L < f.txt\nrun \"${L[@]}\" ${#L[@]} \"$(cat f.txt)\" $(< f.txt)",
    "mapfile": "mapfile -t A <<< $'x y\\nz'\nrun \"${A[@]}\"\nreadarray -t B < <(seq 3)\nrun ${B[@]}\nmapfile C <<< q\nrun \"${C[0]}\"",
    "printf into a variable": 'printf -v N "%03d-%s" 7 abc\nrun "$N"\nprintf -v A[2] "%s" hi\nrun "${A[2]}"\nrun "$(printf "%s," a b c)" "$(printf "%d %x %o %5.2f|%-5s|%05d|%c|%%|%b|%+d|%e" 0x10 255 8 3.14159 ab 42 xyz "a\\tb" 5 1234.5)"',
    "numbers of other bases": "run $((0x18)) $((010)) $((2#101)) $((16#fF)) $((36#z)) $((64#_)) $((0xFF & 017))",
    "operators": "run $(( 1 ? 2 : 3 )) $((-7/2)) $((-7%3)) $((1<<10)) $((255>>2)) $((5&6|1^3)) $((~5)) $((!0)) $((2**10)) $((2**3**2)) $((-2**2)) $((3>2&&1)) $((1,2,3)) $((10-3-2)) $(( (1+2)*3 )) $((7 - - 3)) $((1 ? 0 ? 4 : 5 : 6))",
    "64 bits": "run $((9223372036854775807 + 1)) $((3**60)) $((1<<63)) $((-9223372036854775807 - 1))",
    "assignments in numbers": "i=5\nrun $((i++)) $i $((++i)) $((i--)) $((--i)) $((i+=3)) $((i*=2)) $((i<<=1)) $((i%=7)) $((j=i+1)) $j\nlet i=3 'k = i * 2'\nrun $i $k\n((k = i > 2 ? 10 : 20))\nrun $k",
    "what is not evaluated": "i=1\nrun $((0 && i++)) $i $((1 || i++)) $i $((1 ? i : 1/0)) $((i == 1 ? i++ : i--)) $i",
    "variables of expressions": "a=b+1 b=4\nrun $((a*2)) $((b ? a : 0))\nA=(1 2 3)\n((A[1]+=5))\nA[5]=9\nrun ${A[@]} ${!A[@]} $((A[1]*2)) $((A[b+1]))",
    "status of numbers": "((0)) || run zero\n((5 > 100 ? 1 : 0)) || run f\nlet 0 || run z\nX=1\nwhile ((X < 4)); do ((X++)); done\nrun $X",
    "expressions and their groups": '[[ train_7B_v2 =~ ^train_([0-9]+)B_(v[0-9])$ ]] && run "${BASH_REMATCH[@]}"\nre="([a-z]+)([0-9]*)"\n[[ abc123 =~ $re ]] && run ${BASH_REMATCH[1]} ${#BASH_REMATCH[@]}\n[[ a.c =~ "a.c" ]] && run y\n[[ abc =~ "a.c" ]] || run n\n[[ "a b" =~ a[[:space:]]b ]] && run m\n[[ ab =~ (a|b)+ ]] && run "${BASH_REMATCH[0]}"',
    "replacements": 'v=aXbXc\nrun ${v//X/-} ${v/X/-} ${v/#a/Z} ${v/%c/Z} ${v//X} ${v//[A-Z]/_} "${v/b/\\/}" ${v/X*/} ${v/?/z} ${v//[!X]/.}',
    "letters": "v=aBcD\nrun ${v^^} ${v,,} ${v^} ${v,} ${v^^[a-b]} ${v@U} ${v@L}",
    "slices": 'x=abcdef\ni=2\nrun ${x:1} ${x:0:2} ${x: -2} ${x:0:-1} ${x:1:1} "${x:9}" ${x:1+1} ${x:i} ${x:$i:i} ${x:(-3):2}',
    "cuts": 'P=/a/b.c/d.tar.gz\nrun ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P%/*} "${P#x}" ${P%%[.]*} ${P#"/a"}\nQ="*x"\nrun ${P#$Q} "${Q#\\*}" "${Q#"*"}"',
    "other names": 'N=v v=5\nrun ${!N}\nA=(x y)\nR=A[1]\nrun ${!R}\nR="A[@]"\nrun "${!R}"\ndeclare -n T=v\nT=6\nrun $v $T\nPRE_1=a PRE_2=b\nrun ${!PRE_*}',
    "attributes": "declare -i n=5\nn+=3\nn=n*2\nrun $n\ndeclare -u U=abc\ndeclare -l L=ABC\nrun $U $L\nexport X=1 Y='a b'\nreadonly Z=3\ndeclare -r W=4\nrun $X \"$Y\" $Z $W",
    "names that are made": 'for kv in a=1 b=2; do declare "P_${kv%%=*}=${kv#*=}"; export "E_${kv%%=*}=${kv#*=}"; done\nrun $P_a $P_b $E_b',
    "arguments": 'set -- a "b c" d\nrun $# "$@" "$*" $*\nshift\nrun "$@"\nshift 2\nrun $#\nshift || run none\nrun "x$@y" "$@" x"$@"\nset -- 1 2\nfor x; do run $x; done',
    "a loop over options": 'set -- --tp 4 --pp=2 -x foo\nF=()\nwhile [[ $# -gt 0 ]]; do case "$1" in --tp) TP="$2"; shift 2;; --pp=*) PP="${1#*=}"; shift;; *) F+=("$1"); shift;; esac; done\nrun $TP $PP "${F[@]}"',
    "getopts": 'set -- -a -b val -cbx rest\nwhile getopts "ab:c" o; do run $o "${OPTARG:-}"; done\nshift $((OPTIND-1))\nrun "$@" $OPTIND\nf() { local OPTIND=1 o; while getopts ":n:" o; do run $o "$OPTARG"; done; }\nf -n 3 -z -n',
    "jumps": "for i in 1 2 3; do for j in a b c; do [ $j = b ] && continue 2; [ $i = 3 ] && break 2; X+=$i$j; done; done\nrun $X\ni=9\nuntil [ $i -lt 5 ]; do i=$((i-1)); if [ $i = 6 ]; then break; fi; done\nrun $i",
    "functions": 'f() { return 3; }\nf; run $?\nf || run no $?\n! f; run $?\nfunction g { run "$FUNCX" "$@" ${3:-none} $#; }\nFUNCX=hi g 1 "2 3"\nh() (y=9; run $y)\ny=1; h; run $y\nr() { if [ $1 -gt 0 ]; then R+=$1; r $(($1-1)); fi; }\nr 4; run $R',
    "output of functions": 'f() { echo "out $1"; }\nX=$(f 5)\nrun "$X" $(f a b) "$(f "$(f c)")" `f d` "`echo \\`echo e\\``"\nX=$(exit 4)\nrun $?\nX=$(case a in a) echo b;; esac)\nrun $X',
    "defaults": 'X=\nunset Y\nrun ${X:-a} "${X-b}" ${Y:-c d} "${Y:-c d}" ${Y:-"c  d"} ${Y:-} ${X:+s} "${Y:-"q r"}" "${Y:-\'q r\'}" ${Y:=e  f} "$Y" ${Y:+"$Y g"} ${Y:-$(echo no)}',
    "quotations": "run \"a'b\" 'a\"b' a\\ b $'x\\ty\\x41\\101\\'' \"\\$x \\` \\\\ \\a\" \\a '' \"\" a''b",
    "words of expansions": "X='a   b'\nrun $X \"$X\" a$X\"c d\"$X\nIFS=:\nY='p::q:r:'\nrun $Y \"$Y\"\nZ=' x : y '\nrun $Z\nIFS=', '\nW='a , b,,c'\nrun $W",
    "the home": 'X=~/a\nrun $X ~ ~/b "~/c" a~ "$HOME"',
    "tests": '[ a = a -a 1 -lt 2 ] && run 1\n[ ! a = b ] && run 2\n[ -n "" ] || run 3\n[[ ! ( a == b || c != d ) ]] || run 4\n[[ a < b && 10 -gt 9 ]] && run 5\n[ -z "" -o x = y ] && run 6\n[[ abc == a*c ]] && run 7\n[[ abc == "a*c" ]] || run 8\nV=\n[[ -v V ]] && run 9\n[ \\( a = b \\) -o \\( c = c \\) ] && run 10\n[ 010 -eq 10 ] && run 11\n[[ 010 -eq 8 ]] && run 12\n[ -n ] && run 13\n[ "" ] || run 14',
    "patterns with groups": "X=8B\n[[ $X == @(7B|8B) ]] && run 1\n[[ $X == !(7B) ]] && run 2\n[[ $X == +([0-9])B ]] && run 3\n[[ $X == ?(x)8* ]] && run 4\n[[ aab == *(a)ab ]] && run 5",
    "here-documents in substitutions": "X=\"$(cat <<'EOF'\nit's \"x\" )\nEOF\n)\"\nrun \"$X\" $((1<<3)) \"`echo \\\"q\\\"`\"",
    "here-documents": "x=1\nX=$(cat <<EOF\na $((1+2)) \"q\" \\$x ${x} `echo 4`\nEOF\n)\nrun \"$X\"\nY=$(cat <<-'E'\n\t$x\n\tE\n)\nrun \"$Y\"\nread a b <<< \"$X\"\nrun $b",
    "the end by an error": "set -e\nfalse || true\nif false; then :; fi\n! true\nX=$(false) || run a\nfalse\nrun b",
    "the end": "trap 'run bye' EXIT\nrun hi\nexit 3\nrun no",
    "pipes and their status": "set -o pipefail\nfalse | true\nrun $?\ntrue | false\nrun $?\necho a b | { read x y; run $y; }",
    "eval": 'x=5\neval "y=\\$x"\nrun $y\neval "for i in 1 2; do z+=\\$i; done"\nrun $z\nC="run --a \'b c\'"\neval $C\n$C',
    "tools": "run $(seq 3) $(seq 2 5) $(seq 1 2 7) $(seq 5 -2 1) $(seq -s, 3) $(basename /a/b.sh .sh) $(basename /a/b/) $(dirname /a/b) $(dirname a) $(dirname /a) $(expr 3 \\* 4) $(echo aB | tr a-z A-Z) $(echo a,b,c | cut -d, -f2) $(printf '%d\\n' 3 4 | tail -n 1) $(echo x y z | wc -w) $(seq 9 | head -n 2)",
    "several lines": "run a \\\n  b # c\nX=1 # \\\nrun $X \\\n  $(echo \\\n d)\nif [ 1 = 1 ] &&\n   [ 2 = 2 ]\nthen run e; fi; A=( # f\n 'g h' # i\n j\n)\nrun \"${A[@]}\"",
    "assignments in a row": 'a=5 b=$a c=$((a+b))\nrun $a $b $c\nIFS=- x=1\nv=a-b\nrun $v\nunset IFS\nX= Y=\nX="$X" Y+=z\nrun "${X:-e}$Y"',
}  # fmt: skip


@pytest.mark.parametrize("text", SNIPPETS.values(), ids=SNIPPETS)
def test_words_are_those_of_bash(text, tmp_path):
    assert by_reader(text) == by_bash(text, tmp_path)


# ---- scripts that nobody wrote -----------------------------------------------------------------------------------

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
