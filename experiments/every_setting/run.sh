#!/usr/bin/env bash
# Does every precision, dense and 2:4, train every model family? Accuracy with several jobs at once, then speed one job at a time.
# Usage, from the repository: experiments/every_setting/run.sh digits|real|speed DATA_DIR   (about 2, 4 and 5 minutes on one H200)
set -euo pipefail
. "$(dirname "$0")/../usage.sh"
part=$1
export MPX_DATA=${2:-data}
modes="precision=fp32,tf32,amp,amp_bf16 sparsity=dense,2of4"
at_once="hydra/launcher=joblib hydra.launcher.n_jobs=${JOBS:-12}"
quiet="trainer.progress=off"
export OMP_NUM_THREADS=2
case $part in
digits)
    python -m mpx.train -m study=every_digits $modes $at_once $quiet \
        task=resnet20_digits,resnet18_digits,lstm_digits,bert_small_digits seed=0,1
    ;;
real) # few epochs: this asks whether it trains, not how far it gets
    python -m mpx.train -m study=every_real $modes $at_once $quiet trainer.max_epochs=2 \
        task=bert_small_sst2,lstm_sst2,resnet18_fashion_mnist
    ;;
speed) # alone on the device; 150 steps each
    python -m mpx.train -m study=every_speed $modes $quiet \
        task=resnet18_fashion_mnist,lstm_sst2,bert_small_sst2 \
        trainer.max_steps=150 trainer.limit_val_batches=1 trainer.limit_test_batches=1
    ;;
*)
    echo "error: $part is no part of it. --help shows how to use it." >&2
    exit 2
    ;;
esac
