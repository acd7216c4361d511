#!/usr/bin/env bash
# Builds fp4_quantize's module by `flashinfer-shim prewarm`, on a machine without a GPU, and lets
# FlashInfer itself load it in a process that knows nothing of us.
#
#   bench/prewarm_build.sh SITE [ARCH]
#
# SITE  a directory with one whole FlashInfer: pip install --no-deps --target SITE
#       flashinfer-python==0.6.3
# ARCH  9.0a when left out; newer releases have no such module for it, so 12.0f for them
#
# Needs python3 with torch (any build) and what FlashInfer's import needs, ninja, a C++ compiler,
# and nvcc with its headers and libcudart: CUDA_HOME, or /usr/local/cuda. cublasLt.h and
# curand_kernel.h come with the wheels nvidia-cublas and nvidia-curand: where CUDA_HOME lacks them,
# name their include directories in CPATH. libcuda comes with a driver: for linking, and for loading
# without calling anything, an empty library of its name will do. Exit status: 0 if the module was
# built, found again by a second run, and loaded without a rebuild.
set -euo pipefail

if [[ $# -eq 0 || $# -gt 2 || ! -d $1/flashinfer/data/csrc ]]; then
    echo "usage: bench/prewarm_build.sh SITE [ARCH] (SITE with flashinfer/data/csrc)" >&2
    exit 2
fi
site=$(cd "$1" && pwd)
arch=${2:-9.0a}
root=$(cd "$(dirname "$0")/.." && pwd)
export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

mkdir "$scratch/libcuda"
echo | cc -shared -Wl,-soname,libcuda.so.1 -x c - -o "$scratch/libcuda/libcuda.so.1"
ln -s libcuda.so.1 "$scratch/libcuda/libcuda.so"
export LIBRARY_PATH=$CUDA_HOME/lib64:$CUDA_HOME/lib:$scratch/libcuda${LIBRARY_PATH:+:$LIBRARY_PATH}
export LD_LIBRARY_PATH=$CUDA_HOME/lib64:$CUDA_HOME/lib:$scratch/libcuda
export FLASHINFER_WORKSPACE_BASE=$scratch FLASHINFER_LOGGING_LEVEL=error

"$CUDA_HOME/bin/nvcc" --version | tail -n 2
for run in first second; do
    echo "--- prewarm, the $run run"
    (cd / && PYTHONPATH=$root:$site time python3 -m shim prewarm fp4_quantize --arch "$arch")
done
echo "--- FlashInfer alone"
cd /
FLASHINFER_CUDA_ARCH_LIST=$arch PYTHONPATH=$site python3 - "$arch" <<'EOF'
import sys

import flashinfer
from flashinfer.jit import fp4_quantization

name = sys.argv[1].replace(".", "").replace("0a", "0")
spec = getattr(fp4_quantization, f"gen_fp4_quantization_sm{name}_module")()


def files():
    return {path.name: path.stat().st_mtime_ns for path in spec.build_dir.iterdir()}


before = files()
module = spec.build_and_load()
rebuilt = sorted(name for name, stamp in files().items() if before.get(name) != stamp)
print(f"FlashInfer {flashinfer.__version__} has loaded {spec.name}: {module.fp4_quantize}")
print(f"files written meanwhile: {', '.join(rebuilt) or 'none'}")
sys.exit(bool(rebuilt) or "shim" in sys.modules)
EOF
