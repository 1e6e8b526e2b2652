#!/bin/sh
# install.sh PYTHON VENV WHAT: a virtual environment with haloctl in it, at the versions and hashes of infra/requirements.
# A torch that the given Python already has (a ROCm build, say) is used as it is and never replaced. Else it is PyPI's,
# unless pip is set up with further places for packages: then it is whatever build they have of the pinned version.
set -eu
python=$1 venv=$2 what=$3
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
cat constraints.txt >"$pins"

"$python" -c 'import sys; sys.exit("haloctl needs Python 3.11 or newer; say which with make PYTHON=...") if sys.version_info < (3, 11) else None'
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install_hashed() { pip_install --require-hashes --no-deps --only-binary :all: --requirement "infra/requirements/$1.txt"; }

# whether pip looks for packages in further places than one index
is_set_up_with_places() {
    settings=$("$venv/bin/python" -m pip config list)
    case $settings in *find-links=* | *extra-index-url=*) true ;; *) false ;; esac
}

case $what in
    *dev*) install_hashed dev ;;
    *) install_hashed base ;;
esac

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
elif is_set_up_with_places; then
    echo "using the torch of the places that pip is set up with"
    pip_install --constraint constraints.txt --only-binary :all: torch
else
    install_hashed torch
fi

case $what in
    . | '.[postgres]' | '.[dev,postgres]') pip_install --no-index --no-deps --no-build-isolation --editable "$what" ;;
    *) pip_install --constraint "$pins" --no-build-isolation --editable "$what" ;; # further extras are not hashed
esac
