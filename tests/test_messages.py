"""Every mistake in the configuration is one clear line, exit code 2, no traceback and no folder."""

import pytest
from refused import assert_refused
from started import start

from mpx.errors import UserError
from mpx.train import main

LONG = "x" * 300
# each a mistake of another kind: what is typed, and what the line says
TABLE = """
# choices
precision=ampp | precision=ampp: no such choice. Did you mean amp? Allowed: amp, amp_bf16,
sparsity=0.5 | 2of4, 2of4_2d, dense, nofm, unstructured; or leave it out.
model=resnet34 | is a network of torchvision: use model=torchvision model.name=resnet34.
model=convnext_atto | is a network of timm: use model=timm model.name=convnext_atto.
model=mlp.yaml | model=mlp.yaml: no such choice. Allowed: bert_base,
precision=[amp,fp32] | precision=[amp: no such choice. Allowed: amp,
# keys
optimizer.lrr=0.1 | optimizer.lrr: no such key. Did you mean optimizer.lr?
gpu_share=4 | gpu_share is not a setting of mpx.train. Each job has its GPU to itself. Use hydra.launcher.n_jobs=N
data.global_batch_size=256 | data.global_batch_size is not a setting of mpx.train. Use data.batch_size, the samples
+sparsity.dense_last=true | sparsity.dense_last is not a setting of mpx.train. Use sparsity.skip=[NAME].
precison=amp | precison: no such key. Did you mean precision?
lr=0.1 | lr: no such key. Did you mean optimizer.lr?
control=fp32 | control: no such key. Did you mean until.control?
+optimizer.bogus=1 | optimizer.bogus is not a setting of mpx.
sparsity.recipe=sr_ste | sparsity=dense has no recipe; use sparsity=2of4 sparsity.recipe=sr_ste, or
+data.tta=flip | the chosen data has no tta; use data=cifar10 data.tta=VALUE, or leave it out.
precision=fp32 precision.loss_scale.initial=4 | the chosen precision has no loss_scale.initial; use precision=amp precision.loss_scale.initial=4, or
precision.mode=amp | precision.mode belongs to the choice of precision and is not set by itself. Use precision=CHOICE
model=custom model._target_=a.Net model.kwargs.width=8 | model.kwargs.width: an argument of the constructor is added with a +, as +model.kwargs.width=VALUE.
model=custom model._target_=a.Net +model.width=8 | Did you mean model.widths? An argument of your own class is +model.kwargs.width=
# words
--help sparsit | --help sparsit: no such group or key. Did you mean sparsity?
--help text_csv | --help text_csv: it is a choice of data. Use --help data.
--max-epochs 3 | --max-epochs: no such option. Settings are written key=value, without dashes. Did you mean trainer.max_epochs?
resnet20 | 'resnet20' is not a setting: write key=value, as precision=amp, and quote values
optimizer.lr=[0.1 | 'optimizer.lr=[0.1' is not a setting
model.widths=8,8 | gives several values to a single run. Start a sweep with python -m mpx.train -m, or write model.widths=[…] if it takes a list.
++model={lr:{sgd:1}} | ++model={lr:{sgd:1}}: model is not a single value. Set its keys, as model.family=VALUE.
# values
seed=x | seed=x must be a whole number of at least 0
optimizer.lr=-1 | optimizer.lr=-1 must be a number above 0. For example optimizer.lr=0.1.
trainer.devices=0 | trainer.devices=0 must be a whole number of at least 1, or auto; or a list of
retry_failed=maybe | retry_failed=maybe must be true or false.
study=../x | study=../x must be a folder's name
sparsity=2of4 sparsity.start=1.0 | must be a number of at least 0 and below 1.
trainer.max_epochs=999999999999 | trainer.max_epochs=999999999999 must be at most 2147483647. For example trainer.max_epochs=20.
model=timm | model.name is not set and has no default.
numerics=[1] | numerics=[1]: numerics is not a single value. Set its keys, as numerics.every=VALUE.
model=custom model._target_=json.X model.kwargs=5 | model.kwargs=5 must be names with values. For example
# files and modules
data=text_csv model=lstm data.path=no.csv | data.path=no.csv is not there (seen from
data=mnist data.root=~/no/such data.download=false | /no/such is not there (seen from
data=mnist data.root=/ data.download=false | data.root=/ holds no MNIST/raw/. Give the folder that holds MNIST/raw/, or
model=custom model._target_=no_such.Net | model._target_=no_such.Net: no module no_such in
model=custom model._target_=Net | model._target_=Net is not a path as in an import.
ckpt_path=a/lr=1/last.ckpt | ckpt_path=a/lr=1/last.ckpt is not a file
# combinations
model=resnet18 data=sst2 | model=resnet18 with data=sst2: this model takes images, the data set is labelled text.
data.batch_size=2000 | data.batch_size=2000 on 1 device needs 2000 train samples but there are 1297: lower data.batch_size
trainer.cuda_graphs=true trainer.accelerator=cpu | trainer.cuda_graphs=true is not possible: trainer.accelerator=cpu. Use
trainer.cuda_graphs=true trainer.compile=reduce-overhead | trainer.compile=reduce-overhead makes its own. Use
precision=tf32 precision.emulate=never trainer.accelerator=cpu | precision.emulate=never with precision=tf32 on a CPU
precision=amp precision.loss_scale.initial=1e9 | precision.loss_scale.initial=1e+09 must lie between precision.loss_scale.floor
model=bert_small model.num_heads=7 | model.hidden_size=512 must be a multiple of model.num_heads=7. For example
model=lstm data=wikitext2 model.bidirectional=true | model.bidirectional=true on language modelling data
model=lstm data=wikitext2 model.embedding_size=32 | model.tie_weights=true needs model.embedding_size=32 to equal
optimizer.momentum=0 | optimizer.nesterov=true needs optimizer.momentum above 0.
"""
CASES = [line.split(" | ") for line in TABLE.splitlines() if " | " in line]
CASES += [
    (f"ckpt_path={LONG}", "is not a file. Give the path of a .ckpt that mpx wrote"),
    (f"sparsity=2of4 sparsity.dense_ckpt={LONG}", "is not a file. Give a checkpoint of a dense run"),
    (f"study={LONG}", "output_dir: cannot write "),
]


@pytest.mark.parametrize(("words", "message"), CASES)
def test_mistake_in_the_configuration(train, words, message):
    ran = train(*words.split())
    assert_refused(ran, message)
    assert ran.out == ""


def test_a_line_break_is_a_space(train):
    assert_refused(train("ckpt_path='a\nb'"), "ckpt_path=a b is not a file.")


def test_without_a_driver_a_gpu_is_refused_at_once(train, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert_refused(
        train("trainer.accelerator=gpu"), "error: trainer.accelerator=gpu: no CUDA device is visible here."
    )


def test_a_value_may_be_that_of_another_key(train):
    ran = train("optimizer.lr=${model.lr.adamw}", "trainer.max_epochs=${nosuch}")
    assert_refused(ran, "error: trainer.max_epochs: Interpolation key 'nosuch' not found. Write ${KEY}")


SWEEPS = """
optimizer.lr=interval(0.1,1) | optimizer.lr=interval(0.1,1): a grid has no intervals. Write its values, as 0.1,0.2,0.5.
output_dir={a:1} | output_dir={'a': 1} must be a text.
output_dir=a,b | output_dir: a sweep has one, in which its jobs leave reports. Start one sweep
hydra.sweep.dir=mine | hydra.sweep.dir=mine: mpx names the folders of a sweep, and removes them.
hydra/launcher=basic | hydra/launcher=basic: mpx starts jobs by local, submitit_local
seed=0,1 hydra.launcher.n_jobs=0 | hydra.launcher.n_jobs=0 must be a whole number of at least 1, or -1
# of jobs: said once, before the first
seed=0,1 precision=fp32,ampp | precision=ampp: no such choice
data.batch_size=64,-1 | data.batch_size=-1 must be a whole number of at least 1.
data.batch_size=choice(64,-1) hydra.launcher.n_jobs=-1 | data.batch_size=-1 must be a whole number of at least 1.
trainer.max_epochs=0 until=decided precision=fp32,amp | trainer.max_epochs=0 must be a whole number of at least 1.
data=cifar10 data.root=nowhere data.download=false seed=0,1 | data.root=nowhere is not there
optimizer=sgd optimizer.nesterov=true optimizer.momentum=0.0,0 | optimizer.nesterov=true needs optimizer.momentum above 0.
experiment=loss_scaling optimizer.lr=0 data.root=. | optimizer.lr=0 must be a number above 0.
"""
OF_A_SWEEP = [line.split(" | ") for line in SWEEPS.splitlines() if " | " in line]
OF_A_SWEEP += [(f"output_dir={LONG}", "output_dir: cannot write xxx")]


@pytest.mark.parametrize(("words", "message"), OF_A_SWEEP)
def test_a_sweep_that_cannot_begin(tmp_path, words, message):
    ran = start(main, tmp_path, *words.split(), "-m")  # which stands anywhere
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_whose_output_folder_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    ran = start(main, tmp_path, "-m", "seed=0,1", "output_dir=file")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: output_dir: cannot write file/_sweep/")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_a_reference_to_another_key_is_no_mistake_of_a_sweep(forked):
    words = ["model=mlp", "trainer.max_steps=2", "data.batch_size=${trainer.max_steps}", 'label="a b"']
    ran = forked("-m", *words, "seed=0")
    assert ran.code == 0, ran.err


def test_a_dotted_key_of_a_file_would_set_nothing(tmp_path):
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text("# @package _global_\noptimizer.lr: 0.3\n")
    ran = start(main, tmp_path, "--config-dir", "own", "experiment=mine")
    line = (
        "error: optimizer.lr: a dotted key sets nothing in a YAML file or within braces. Write "
        "optimizer: {lr: VALUE} there.\n"
    )
    assert (ran.code, ran.err) == (2, line)


def test_traceback_on_request(tmp_path):
    with pytest.raises(UserError, match=r"optimizer\.lr=-1 must be"):
        start(main, tmp_path, "optimizer.lr=-1", env={"HYDRA_FULL_ERROR": "1"})
