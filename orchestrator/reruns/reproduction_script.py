"""The shell templates of the script that repeats an attempt; `reproduction` fills in the braces."""

SCRIPT = """\
#!/bin/sh
{header}
set -eu
{start}
case ${{TOOLS:-/}} in /*) ;; *) TOOLS=$PWD/$TOOLS ;; esac
here=$(cd "$(dirname "$0")" && pwd)
programs=

mkdir "$folder"
cd "$folder"
mkdir {outputs} tmp
{functions}
{inputs}{tools}{commands}
echo "outputs are in $PWD/{outputs}"
{checks}"""

ALONE = "folder=${{1:-{attempt}}}\n"

#: Of a gang: on which of its nodes, and as which rank, the script is started.
GANG = """\
folder=${{1:-{attempt}}}
rank=${{2:-${{PET_NODE_RANK:-}}}}
address=${{3:-${{PET_MASTER_ADDR:-}}}}
port=${{4:-${{PET_MASTER_PORT:-{port}}}}}
if [ -z "$rank" ] || [ -z "$address" ]; then
    cat >&2 <<'HOW'
It ran on {size} nodes at once. Start it on each of them; ADDRESS is where the others reach the first one:
{starts}
HOW
    exit 2
fi
case $rank in
{masks}
*) echo "there is no node $rank: they are 0 to {last}" >&2 && exit 2 ;;
esac
"""

#: SHA256 PLACE PATH [URL...]; the content is that of all URLs, one after the other
PLACE = """
place() {
    sha256=$1 place=$2 path=$3
    shift 3
    mkdir -p "${place%/*}"
    if [ -n "$path" ] && [ -e "$path" ]; then
        ln "$path" "$place" 2>/dev/null || ln -s "$path" "$place"
    elif [ $# -gt 0 ]; then
        for url in "$@"; do
            echo "url = \\"$url\\"" | curl --config - --fail --location --silent --show-error --retry 5 >>"$place"
        done
    else
        haloctl artifacts get "$sha256" --output "$place"
    fi
}
"""

RUN = """
run() {{
    env -i \\
        {environment} \\
        TMPDIR="$PWD/tmp"{devices} ${{programs:+PYTHONPATH="$programs"}} \\
        "$@"
}}
"""

#: Links to the stage programs, and to nothing else, for a python that does not have them.
PROGRAMS = """
programs() {{
    root=$here/programs
    [ -d "$root" ] || root={root}
    if [ ! -d "$root/workers/llm" ]; then
        echo "the stage programs are not in $root: write this script with haloctl reproduce --output" >&2 && exit 1
    fi
    mkdir programs
    ln -s "$root/workers" "$root/jobs" programs/
    programs=$PWD/programs
}}
"""

#: The folder exists, and its packages still have the versions that they had.
IS_AS_IT_WAS = """
is_as_it_was() {
    "$1/python3" -I -c '
import sys
from importlib.metadata import PackageNotFoundError, version
def found(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None
sys.exit(any(found(name) != wanted for name, _, wanted in (pin.partition("==") for pin in sys.argv[1:])))
' $pins 2>/dev/null
}
"""

BUILD = """
build() {{
    echo "building the toolchain in $PWD/toolchain" >&2
    cat >pins.txt <<'PINS'
{pins}
PINS
    cat >lock.txt <<'LOCK'
{lines}
LOCK
    if command -v uv >/dev/null; then
        # pip takes folders between blanks, uv between commas
        [ -n "${{UV_FIND_LINKS-}}" ] || export UV_FIND_LINKS="$(echo "${{PIP_FIND_LINKS-}}" | tr ' ' ,)"
        [ -n "$UV_FIND_LINKS" ] || unset UV_FIND_LINKS
        for name in INDEX_URL EXTRA_INDEX_URL; do
            eval "theirs=\\${{PIP_$name-}} ours=\\${{UV_$name-}}"
            [ -n "$ours" ] || [ -z "$theirs" ] || export "UV_$name=$theirs"
        done
        [ -z "${{PIP_CERT-}}" ] || export SSL_CERT_FILE="${{SSL_CERT_FILE-$PIP_CERT}}"
        uv venv --quiet{python} toolchain
        install="uv pip install --quiet --python toolchain/bin/python"
    else
        python3 -m venv toolchain
        install="toolchain/bin/python -m pip install --quiet --disable-pip-version-check"
    fi
{installs}
    TOOLS=$PWD/toolchain/bin
}}
"""
INSTALL_PINS = "    $install -r pins.txt"
INSTALL_LOCK = "    $install --no-deps -r lock.txt"

TOOLS = """\
pins='{pins}'
was={was}
if [ -z "${{TOOLS:-}}" ]; then
    if [ -n "$was" ] && is_as_it_was "$was"; then TOOLS=$was; else build; fi
fi
{programs}
"""
#: The tools come from another python, which needs a path to the stage programs.
NEEDS_PROGRAMS = '[ "$TOOLS" = "$was" ] && [ ! -d "$here/programs" ] || programs'
