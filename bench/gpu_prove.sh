#!/usr/bin/env bash
# Runs `prove` with real kernels: on a machine with a GPU, for each FlashInfer wheel in a directory.
#
#   bench/gpu_prove.sh WHEELS OUT
#
# WHEELS  wheels of flashinfer_python (one release each) and of whatever their import needs beyond
#         what is installed (apache_tvm_ffi, nvidia_ml_py, tabulate, ...); where wheels of
#         nvidia_cutlass_dsl are among them, every op is tried without and with it
# OUT     for each release prove-RELEASE.txt, prove-RELEASE.json and ops-RELEASE.json (every
#         declared op, see bench/gpu_ops.py; ops-RELEASE-dsl.json with nvidia-cutlass-dsl), and
#         machine.txt
#
# Needs python3 with torch for this GPU, pip, wrapt, packaging and importlib-metadata
# (installed, or among the wheels), nvcc, and no network. Kernels are built into FlashInfer's own
# cache, FLASHINFER_WORKSPACE_BASE if that is set: the first run takes minutes. Exit status: 0 if
# every release passed.
set -euo pipefail

if [[ $# -ne 2 || ! -d $1 ]]; then
    echo "usage: bench/gpu_prove.sh WHEELS OUT (WHEELS is a directory of wheels)" >&2
    exit 2
fi
wheels=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)

shopt -s nullglob
releases=("$wheels"/flashinfer_python-*.whl)
if [[ ${#releases[@]} -eq 0 ]]; then
    echo "bench/gpu_prove.sh: no flashinfer_python-*.whl in $wheels" >&2
    exit 2
fi
others=()
dsl=()
for wheel in "$wheels"/*.whl; do
    case ${wheel##*/} in
    flashinfer_python-*) ;;
    nvidia_cutlass_dsl*) dsl+=("$wheel") ;;
    *) others+=("$wheel") ;;
    esac
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

install() { # DIRECTORY WHEEL...
    python3 -m pip --disable-pip-version-check install --quiet --no-index --no-deps \
        --no-compile --target "$@"
}

{
    date -u +%Y-%m-%d
    nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader
    nvcc --version | tail -n 1
    python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda)'
} | tee "$out/machine.txt"

# Python reads no .pth file of a --target directory, and nvidia-cutlass-dsl is reached through one.
entries() { # DIRECTORY
    python3 -c 'import os, site, sys
before = list(sys.path)
site.addsitedir(sys.argv[1])
print(os.pathsep.join(entry for entry in sys.path if entry not in before))' "$1"
}

common=$scratch/common
mkdir "$common" "$scratch/dsl"
if [[ ${#others[@]} -gt 0 ]]; then
    install "$common" "${others[@]}"
fi
others_path=$(entries "$common")
dsl_path=
if [[ ${#dsl[@]} -gt 0 ]]; then
    install "$scratch/dsl" "${dsl[@]}"
    dsl_path=:$(PYTHONPATH=$others_path entries "$scratch/dsl")
fi

failed=0
for wheel in "${releases[@]}"; do
    release=${wheel##*/flashinfer_python-}
    release=${release%%-*}
    site=$scratch/flashinfer-$release
    install "$site" "$wheel"
    echo "=== FlashInfer $release ===" >&2
    PYTHONPATH=$root:$site:$others_path COLUMNS=160 \
        python3 -m shim prove --save "$out/prove-$release.json" |
        tee "$out/prove-$release.txt" || failed=1
    PYTHONPATH=$root:$site:$others_path \
        python3 "$root/bench/gpu_ops.py" --save "$out/ops-$release.json" || failed=1
    if [[ -n $dsl_path ]]; then # much of the newer releases goes other ways with it
        PYTHONPATH=$root:$site:$others_path$dsl_path \
            python3 "$root/bench/gpu_ops.py" --save "$out/ops-$release-dsl.json" || failed=1
    fi
done
exit "$failed"
