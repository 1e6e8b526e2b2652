#!/bin/sh
# install.sh PYTHON VENV WHAT: a virtual environment with haloctl in it, as constraints.txt pins it.
# A torch that the given Python already has (a ROCm build, say) is used as it is and never replaced.
set -eu
python=$1 venv=$2 what=$3
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT

"$python" -c 'import sys; sys.exit("haloctl needs Python 3.11 or newer; say which with make PYTHON=...") if sys.version_info < (3, 11) else None'
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

# VERSION FOLDER of a torch that fits, or nothing
torch=$("$python" -c '
from importlib.metadata import PackageNotFoundError, distribution
try:
    torch = distribution("torch")
except PackageNotFoundError:
    raise SystemExit
if tuple(map(int, torch.version.split(".")[:2])) >= (2, 8):
    print(torch.version, torch.locate_file(""))')
if [ -n "$torch" ]; then
    echo "using the torch ${torch%% *} that $python has"
    sed "s/^torch==.*/torch==${torch%% *}/" constraints.txt >"$pins"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "${torch#* }" >"$site/torch-of-the-given-python.pth"
else
    cat constraints.txt >"$pins"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$pins" --editable "$what"
