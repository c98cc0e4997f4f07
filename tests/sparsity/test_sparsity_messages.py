"""Every mistake in the sparsity settings is one clear line, exit code 2, no traceback and no folder; or one
line of a failed run.
"""

import pytest
import torch
from few_steps import FEW_STEPS
from refused import assert_refused
from torch import nn

# words of the command | the line
TABLE = """
sparsity=2of5 | sparsity=2of5: no such choice. Did you mean 2of4? Allowed: 2of4, 2of4_2d, dense, nofm,
sparsity=2of4 sparsity.recipe=aps | sparsity.recipe=aps must be one of asp, one_shot, from_start, gradual,
sparsity.start=0.3 | sparsity=dense has no start; use sparsity=2of4 sparsity.start=0.3, or
sparsity=2of4 sparsity.start_step=-1 | sparsity.start_step=-1 must be a whole number of at least 0, or null.
sparsity=2of4 sparsity.decay=1e-3 | sparsity.decay has no meaning for sparsity.recipe=asp. Leave it out, or use
sparsity=2of4 sparsity.recipe=one_shot sparsity.start=0.2 | sparsity.start has no meaning for sparsity.recipe=one
sparsity=2of4 sparsity.recipe=gradual sparsity.end=0.3 | sparsity.end=0.3 must be at least sparsity.start=0.5.
sparsity=2of4 sparsity.dense_ckpt=no.ckpt | sparsity.dense_ckpt=no.ckpt is not a file. Give a checkpoint of a
sparsity=2of4 sparsity.dense_ckpt=FILE ckpt_path=FILE | ckpt_path and sparsity.dense_ckpt both bring weights.
sparsity=nofm sparsity.n=8 | sparsity.n=8 must be below sparsity.m=8. For example sparsity.n=4.
sparsity=nofm sparsity.m=64 | sparsity.m=64 must be a whole number of at least 2 and at most 32.
sparsity=unstructured sparsity.density=1 | sparsity.density=1 must be a number above 0 and below 1.
sparsity=2of4 sparsity.types=[Embedding] | sparsity.types=['Embedding'] must be a list of at least 1, each one of
sparsity.pattern=2of4 | sparsity.pattern belongs to the choice of sparsity
"""
CASES = [line.split(" | ") for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("words", "message"), CASES, ids=[words for words, _ in CASES])
def test_mistake_in_the_configuration(train, tmp_path, words, message):
    (file := tmp_path / "any.ckpt").touch()
    assert_refused(train(*words.replace("FILE", str(file)).split()), message)


def test_a_start_beyond_the_run(train):
    ran = train("model=mlp", "sparsity=2of4", "sparsity.start_step=3", *FEW_STEPS)
    assert_refused(ran, "sparsity.start_step=3 lies beyond the run, which has 2 steps. Lower it.")


def test_a_name_that_no_layer_has(train):
    assert_refused(
        train("model=mlp", "sparsity=2of4", "sparsity.only=[encoder]", *FEW_STEPS),
        'sparsity.only=["encoder"] names no layer of this',
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no", "cannot be read, it is damaged or no checkpoint"),
        ([1, 2], "holds no weights. Give a checkpoint of mpx or Lightning, or a saved state_dict."),
        (nn.Linear(3, 3).state_dict(), "is a checkpoint of another model: "),
    ],
    ids=["damaged", "no weights", "another model"],
)
def test_dense_checkpoints_that_are_none(train, tmp_path, content, message):
    file = tmp_path / "dense.ckpt"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    assert_refused(
        train("model=mlp", "sparsity=2of4", f"sparsity.dense_ckpt={file}", *FEW_STEPS),
        f"sparsity.dense_ckpt={file} {message}",
    )
