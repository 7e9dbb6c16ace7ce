#!/bin/sh
# Runs `faser gpu-check` on a machine with a GPU, in pieces that each end within ten minutes; needs the release binary and nothing else.
#
#   sh gpu_checks.sh [FASER [PIECE..]]     FASER: the binary (./faser); PIECE: right, ranks, speed, models, policies (all of them, one after the other)
#
# Finds the driver, NVRTC, cublasLt and NCCL, in the usual places, and says what it found. Tables and JSON go to $OUT, or the folder
# gpu-checks-out. DEVICE is the GPU's number, EXTRA more options. The status is 1 if a check failed or a piece did not end.
faser=${1:-./faser}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- right ranks speed models policies
out=${OUT:-gpu-checks-out}
mkdir -p "$out" || exit 1
[ -x "$faser" ] || { echo "there is no program $faser: name the release binary of faser"; exit 1; }

site=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)
path=${LD_LIBRARY_PATH:-}
# Those of CUDA 12 are for drivers before 580.
for library in libcuda.so.1 libnvrtc.so.13 libcublasLt.so.13 libnvrtc.so.12 libcublasLt.so.12 libnccl.so.2; do
    found=
    for folder in $(echo "$path" | tr ':' ' ') "$site"/nvidia/*/lib /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib \
        /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/python3*/site-packages/nvidia/*/lib \
        /usr/local/lib/python3*/*-packages/nvidia/*/lib /opt/*/lib/python3*/site-packages/nvidia/*/lib \
        /opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib; do
        [ -e "$folder/$library" ] || continue
        found=$folder
        break
    done
    echo "$library: ${found:-not found, left to the system}"
    case ":$path:" in
        *":${found:-$path}:"*) ;;
        *) path=$path${path:+:}$found ;;
    esac
done
LD_LIBRARY_PATH=$path
export LD_LIBRARY_PATH
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"

status=0
for piece in "$@"; do
    case $piece in
        right) only=device,compile,ops,logits,split,graph,flags,illegal-address,tokens,lost ;;
        ranks) only=nccl ;;
        speed) only=rates,products,attention,passes,overlap ;;
        models) only=models ;;
        policies) only=policies ;;
        *) echo "there is no piece $piece: right, ranks, speed, models, policies"; exit 1 ;;
    esac
    echo "== $piece: $only"
    # The limits of the checks of a piece add up to less.
    timeout -k 5 580 "$faser" gpu-check --only "$only" --device "${DEVICE:-0}" --json "$out/$piece.json" $EXTRA \
        >"$out/$piece.txt" 2>"$out/$piece.log" || status=1
    cat "$out/$piece.txt"
    [ "$status" = 0 ] || tail -n 30 "$out/$piece.log"
done
exit $status
