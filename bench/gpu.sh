#!/usr/bin/env bash
# Every figure of docs/performance.md that needs a GPU, and calls and compiling on its processor.
#
#   PYTHONPATH=FLASHINFER[:...] bench/gpu.sh OUT
#
# PYTHONPATH leads to FlashInfer 0.6.3 or newer and to what its import needs; the checkout is put in
# front. Needs python3 with torch for this GPU, wrapt, packaging, importlib-metadata and nvcc, and no
# network. Kernels are built into FlashInfer's own cache (FLASHINFER_WORKSPACE_BASE): a minute.
# All of it takes about six minutes on an H200 with 16 cores.
#
# OUT  gets eager-gpu.json, calls-gpu.json, stack-gated.json, stack-small.json, decoder-RELEASE.json, and
#      in gpu.txt what they printed. Each benchmark saves as it goes, so that one that its time limit
#      ends leaves what it has.
#
# Exit status: 0 if all of them ended well.
set -uo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: PYTHONPATH=FLASHINFER bench/gpu.sh OUT" >&2
    exit 2
fi
mkdir -p "$1"
out=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
last=$(($(nproc) - 1)) # a core that is left to what runs beside the stack
failed=0
release=$(python3 -c 'import flashinfer; print(flashinfer.__version__)' | tail -n 1) || exit 2

part() { # SECONDS SCRIPT ARGS...
    local limit=$1 script=$2 began=$SECONDS status
    shift 2
    taskset -c "0-$((last > 0 ? last - 1 : 0))" timeout "$limit" python3 "$root/bench/$script" "$@"
    status=$?
    printf '=== %s: status %d, %d s\n' "$script $*" "$status" $((SECONDS - began))
    return "$status"
}

all() {
    part 200 decoder.py --build || return 1
    part 60 eager.py --gpu --json "$out/eager-gpu.json" || failed=1
    local beside calls # what needs no GPU runs beside the stack
    beside=$(mktemp)
    taskset -c "$last" timeout 200 python3 "$root/bench/calls.py" --json "$out/calls-gpu.json" \
        >"$beside" 2>&1 &
    calls=$!
    part 120 stack.py --shape gated --rows 1 16 256 4 64 --json "$out/stack-gated.json" || failed=1
    part 90 stack.py --shape small --rows 1 16 256 4 64 --json "$out/stack-small.json" || failed=1
    wait "$calls" || failed=1
    cat "$beside"
    rm "$beside"
    part 150 decoder.py --save "$out/decoder-$release.json" || failed=1
    return "$failed"
}

all 2>&1 | tee "$out/gpu.txt"
