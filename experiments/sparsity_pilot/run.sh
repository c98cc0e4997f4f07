#!/usr/bin/env bash
# What does pruning cost ResNet-20 on CIFAR-10? Ten settings, three seeds, three sweeps side by side on one GPU (accuracy only).
# Usage, from the repository: experiments/sparsity_pilot/run.sh DATA_DIR
# EPOCHS (30): of every run, dense phase included. JOBS (3): at once in each sweep. A second start continues what was cut off.
set -euo pipefail
. "$(dirname "$0")/../usage.sh"
export MPX_DATA=$1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export TORCHINDUCTOR_COMPILE_THREADS=1 # sr_ste compiles one kernel in every run
jobs=${JOBS:-3}
train() { # how many at once, overrides
    python -m mpx.train -m study=sparsity_pilot "task=${TASK:-resnet20_cifar10}" "trainer.max_epochs=${EPOCHS:-30}" precision=tf32 \
        seed=0,1,2 trainer.progress=off hydra/launcher=joblib "hydra.launcher.n_jobs=$1" "${@:2}"
}
train "$jobs" sparsity=dense,unstructured,2of4_2d &
train $((jobs + 1)) sparsity=2of4 sparsity.recipe=asp,one_shot sparsity.permute=false,true &
{
    train "$jobs" sparsity=2of4 sparsity.recipe=sr_ste sparsity.start=0.5 sparsity.permute=false,true
    train "$jobs" sparsity=2of4 sparsity.recipe=sr_ste sparsity.start=0.0
} &
wait
