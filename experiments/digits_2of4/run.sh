#!/usr/bin/env bash
# Is 2of4 within one point of dense on the digits? Three models, five seeds, several jobs at once (accuracy only).
# Usage, from the repository: experiments/digits_2of4/run.sh    (JOBS: how many at once; a second start continues what was cut off)
set -euo pipefail
. "$(dirname "$0")/../usage.sh"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
python -m mpx.train -m study=digits_2of4 task=resnet20_digits,lstm_digits,bert_small_digits sparsity=dense,2of4 seed=0,1,2,3,4 \
    precision=amp trainer.progress=off hydra/launcher=joblib hydra.launcher.n_jobs="${JOBS:-8}" "$@"
