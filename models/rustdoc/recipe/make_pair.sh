#!/bin/sh
# Make the pair from scratch: corpus, tokenizer, target, its drafts, held-out prompts, measurements.
#
#     ./make_pair.sh WORK_DIR [OUT_DIR]
#
# WORK_DIR takes the corpus, the logs, the samples and the models in between; OUT_DIR (by default
# this recipe's parent folder) takes target/, draft/, pard/, eagle3/, dspark/, heldout_prompts.json
# and measurements.json. TARGET_MINUTES, DRAFT_MINUTES and SECOND_MINUTES (the draft's two rounds),
# PARD_MINUTES (the draft that proposes in one pass), EAGLE3_MINUTES and DSPARK_MINUTES (the heads
# that read the target's hidden states, of one core's time) set the training times.
# Needs `cargo build --release` before (faser writes the target's texts), a Rust toolchain with rust-docs,
# a C++ compiler, and a Python with the packages of requirements.txt.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
out=${2:-$here/..}
python=${PYTHON:-python3}
threads=${THREADS:-$(nproc)}
target_minutes=${TARGET_MINUTES:-48}
draft_minutes=${DRAFT_MINUTES:-10}
second_minutes=${SECOND_MINUTES:-7.5}
pard_minutes=${PARD_MINUTES:-20}
eagle3_minutes=${EAGLE3_MINUTES:-18}
dspark_minutes=${DSPARK_MINUTES:-44}
export OMP_WAIT_POLICY=PASSIVE

mkdir -p "$work"
rm -f "$work/samples.npy"
"$python" "$here/corpus.py" --out "$work"
"$python" "$here/tokenizer.py" --data "$work"
"$python" "$here/prompts.py" --data "$work" --out "$out/heldout_prompts.json"
"$python" -u "$here/train.py" --data "$work" --out "$work/target" --log "$work/target.jsonl" \
    --minutes "$target_minutes" --threads "$threads"
"$python" -u "$here/samples.py" --data "$work" --target "$work/target"
"$python" -u "$here/distill.py" --data "$work" --target "$work/target" --out "$work/draft" --rows 8 \
    --log "$work/draft.jsonl" --minutes "$draft_minutes" --threads "$threads"
"$python" -u "$here/unrepeat.py" --data "$work" --start "$work/target" --out "$out/target" --rows 8 \
    --log "$work/unrepeat.jsonl" --minutes 6 --threads "$threads"
"$python" -u "$here/distill.py" --data "$work" --target "$out/target" --start "$work/draft" --out "$out/draft" \
    --rows 8 --log "$work/draft2.jsonl" --minutes "$second_minutes" --threads "$threads"
rm "$work/samples.npy"
"$python" -u "$here/samples.py" --data "$work" --target "$out/target"
"$python" -u "$here/pard.py" --data "$work" --target "$out/target" --start "$out/draft" --out "$out/pard" \
    --log "$work/pard.jsonl" --minutes "$pard_minutes" --threads "$threads"
"$python" -u "$here/eagle3.py" --data "$work" --target "$out/target" --out "$out/eagle3" \
    --log "$work/eagle3.jsonl" --minutes "$eagle3_minutes" --threads 1
"$python" -u "$here/dspark.py" --data "$work" --target "$out/target" --out "$out/dspark" \
    --log "$work/dspark.jsonl" --minutes "$dspark_minutes" --threads 1
"$python" -u "$here/evaluate.py" --target "$out/target" --draft "$out/draft" --pard "$out/pard" --eagle3 "$out/eagle3" \
    --dspark "$out/dspark" --data "$work" --prompts "$out/heldout_prompts.json" --out "$out/measurements.json" --check-hf --threads "$threads"
