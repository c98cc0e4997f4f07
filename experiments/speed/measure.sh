#!/bin/bash
# mpx beside its rivals, and the LSTM's ceiling: one call of under nine minutes on one host, whose GPUs (one or two) share the models.
# $ OUT=/tmp/speed experiments/speed/measure.sh       # or with 300 behind it: to start no measurement after so many seconds
# $ python experiments/speed/run.py --card /tmp/speed/speed*.csv && python experiments/ceilings/card.py /tmp/speed/lstm.json
set -u
. "$(dirname "$0")/../usage.sh"
cd "$(dirname "$0")/../.."
export PYTHONPATH=$PWD:${PYTHONPATH:-} PYTHONUNBUFFERED=1
OUT=${OUT:-$(mktemp -d)} LIMIT=${1:-440} BEGUN=$SECONDS

part() { # GPU, number of the part, options of run.py
    local gpu=$1 number=$2 left=$((LIMIT - SECONDS + BEGUN)) folder
    shift 2
    [ $left -gt 30 ] || return
    folder=$(mktemp -d)
    CUDA_VISIBLE_DEVICES=$gpu OUT=$folder python experiments/speed/run.py --seconds $left "$@" 2>"$folder/errors" | sed "s/^/GPU $gpu /"
    [ -s "$folder/results.csv" ] || tail -n 20 "$folder/errors"
    cp "$folder/results.csv" "$OUT/speed-$gpu-$number.csv"
}

share() { # GPU, its models
    part $1 1 --sections rivals --models $2
    part $1 2 --sections rivals --models $2 --contenders mpx,hand --rounds 3
    part $1 3 --sections plain --models $2
}

ceiling() {
    CUDA_VISIBLE_DEVICES=0 timeout 100 python -m mpx.bench what=lstm output_dir="$OUT" && mv "$OUT/bench/lstm.json" "$OUT" && rm -r "$OUT/bench"
}

if [ "$(nvidia-smi -L | wc -l)" -gt 1 ]; then
    { ceiling; share 0 lstm,resnet50; } &
    share 1 resnet18,bert_small &
    wait
else
    ceiling
    share 0 lstm,bert_small,resnet18,resnet50
fi
echo "written to $OUT after $((SECONDS - BEGUN)) s"
