#!/usr/bin/env bash
# Lightning's own tests with mpx's parts: lightning_cases.sh REPOSITORY TESTS…
# REPOSITORY: a clone of Lightning-AI/pytorch-lightning with its tags (TAG, 2.6.1). TESTS: below tests/tests_pytorch. MODES: passes;
# plain: without mpx; as-asked: mpx.Precision of the Trainer's precision=; sparsity: mpx.Sparsity as one more callback; any other: that
# mode of mpx.Precision where a Trainer names no precision. Prints what fails with mpx and not without. OUT: a folder to keep.
set -e
repo=$1; shift
out=${OUT:-$(mktemp -d)}; mkdir -p "$out"; cd "$out"
mpx=$(dirname "$(dirname "$(python -c 'import mpx; print(mpx.__file__)')")")
if [ ! -d tests_pytorch ]; then
  git -C "$repo" archive "${TAG:-2.6.1}" tests/tests_pytorch | tar x --strip-components=1
  grep -rlE 'lightning\.(pytorch|fabric)|from lightning import' tests_pytorch | xargs sed -i -E \
    's/lightning\.pytorch/pytorch_lightning/g; s/lightning\.fabric/lightning_fabric/g; s/from lightning import/from pytorch_lightning import/'
fi
cat > mpx_in_place.py <<'P'
import functools, os
import pytorch_lightning as pl
from pytorch_lightning.plugins.precision import Precision
MODE, ASKED = os.environ["MPX_MODE"], {"32-true": "fp32", "32": "fp32", 32: "fp32", None: "fp32", "16-mixed": "amp", 16: "amp", "16": "amp",
                                       "bf16-mixed": "amp_bf16", "bf16": "amp_bf16", "16-true": "fp16_true", "bf16-true": "bf16_true"}
as_list = lambda given: list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
plain = pl.Trainer.__init__
@functools.wraps(plain)
def init(self, *args, **kwargs):
    import mpx
    asked, plugins = kwargs.get("precision"), as_list(kwargs.get("plugins"))
    if MODE == "sparsity":
        sparsity = mpx.Sparsity("2of4", recipe="from_start", shape_rule="any")
        kwargs["callbacks"] = [*as_list(kwargs.get("callbacks")), sparsity]
    elif asked in ASKED and not any(isinstance(plugin, (Precision, str)) for plugin in plugins):
        mode = ASKED[asked] if MODE == "as-asked" or asked is not None else MODE
        kwargs.pop("precision", None)
        kwargs["plugins"] = [*plugins, mpx.Precision(mode, **({"initial": 1024.0} if mode in ("amp", "fp16_true") else {}))]
    plain(self, *args, **kwargs)
if MODE != "plain":
    pl.Trainer.__init__ = init
P
for mode in ${MODES:-plain as-asked amp sparsity}; do
  (cd tests_pytorch && MPX_MODE=$mode PYTHONPATH="$out:$mpx" timeout "${LIMIT:-900}" python -m pytest -q -n 0 -p mpx_in_place -p no:cacheprovider \
    -W ignore --timeout 60 -o addopts= --continue-on-collection-errors -rfE --tb=short "$@") > "$out/$mode.txt" 2>&1 || true
  tail -1 "$out/$mode.txt" | sed "s/^/$mode: /"
  grep -E '^(FAILED|ERROR)' "$out/$mode.txt" | sed 's/ - .*//' | sort > "$out/$mode.failed" || true
  [ "$mode" = plain ] || comm -13 "$out/plain.failed" "$out/$mode.failed"
done
