#!/bin/sh
# lock.sh [UV]: pins what install.sh installs, with the hashes of all wheels in the package index, at the versions that
# constraints.txt names. torch and what only its builds for CUDA need have a file of their own: many a site has another.
set -eu
uv=${1:-uv}
cd "$(dirname "$0")/.."
whole=$(mktemp)
trap 'rm -f "$whole"' EXIT

# split FILE: the packages of torch go to standard output, all others to FILE
split() {
    awk -v others="$1" '
        /^[^ #]/ { is_torch = /^(torch|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)==/ && !/^nvidia-ml-py==/ }
        { if (is_torch) print; else print > others }' "$whole"
}

# compile EXTRA...: all that haloctl with some extras needs, and what its own build needs
compile() {
    printf 'hatchling\neditables\n' | "$uv" pip compile --quiet --no-header --no-annotate --universal \
        --python-version 3.11.5 --generate-hashes --only-binary :all: --constraint constraints.txt \
        --output-file "$whole" pyproject.toml - "$@"
}

compile --extra postgres --extra serve --extra web
split infra/requirements/base.txt >infra/requirements/torch.txt
compile --extra postgres --extra serve --extra web --extra dev
split infra/requirements/dev.txt >/dev/null
