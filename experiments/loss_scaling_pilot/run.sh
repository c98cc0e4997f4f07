#!/usr/bin/env bash
# What is loss scaling for? ResNet-18 on Fashion-MNIST, three seeds in five settings, several at once on one GPU (accuracy only).
# Usage, from the repository: experiments/loss_scaling_pilot/run.sh DATA_DIR    (about 8 minutes on one H200)
set -euo pipefail
. "$(dirname "$0")/../usage.sh"
export MPX_DATA=$1
export OMP_NUM_THREADS=2
common="study=loss_scaling_pilot task=resnet18_fashion_mnist trainer.max_epochs=${EPOCHS:-10} seed=0,1,2 trainer.progress=off if_exists=auto"
at_once="hydra/launcher=joblib hydra.launcher.n_jobs=${JOBS:-8}"
python -m mpx.train -m $common $at_once precision=fp32,tf32,amp,amp_bf16 &
python -m mpx.train -m $common $at_once precision=amp precision.loss_scale.dynamic=false precision.loss_scale.initial=1.0 &
wait
