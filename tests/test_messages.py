"""Every mistake in the configuration is one clear line, exit code 2, no traceback and no folder."""

import pytest
from refused import assert_refused
from started import start

from mpx.errors import UserError
from mpx.train import main

CASES = [
    (
        ["precision=ampp"],
        "precision=ampp: no such choice. Did you mean amp? Allowed: amp, amp_bf16, "
        "amp_fp16, bf16_true, fp16_true, fp32,",
    ),
    (["model=resnet21"], "model=resnet21: no such choice. Did you mean resnet20?"),
    (["optimizer.lrr=0.1"], "optimizer.lrr: no such key. Did you mean optimizer.lr?"),
    (["note=tried"], "note is a setting of mpx.compare, not of mpx.train. Give it to python -m mpx.compare."),
    (["control=fp32"], "control: no such key. Did you mean until.control?"),
    (["precison=amp"], "precison: no such key. Did you mean precision?"),
    (["+optimizer.bogus=1"], "optimizer.bogus is not a setting of mpx."),
    (["seed=x"], "seed=x must be a whole number of at least 0"),
    (["optimizer.lr=-1"], "optimizer.lr=-1 must be a number above 0. For example optimizer.lr=0.1."),
    (["optimizer.lr=nan"], "optimizer.lr=nan must be a number above 0."),
    (
        ["trainer.max_epochs=0"],
        "trainer.max_epochs=0 must be a whole number of at least 1. For example trainer.max_epochs=20.",
    ),
    (["trainer.max_epochs=2.5"], "trainer.max_epochs=2.5 must be a whole number of at least 1."),
    (["trainer.devices=0"], "trainer.devices=0 must be a whole number of at least 1, or auto; or a list of"),
    (["trainer.accelerator=tpu"], "trainer.accelerator=tpu must be one of auto, cpu, gpu."),
    (["if_exists=maybe"], "if_exists=maybe must be one of auto, new, skip, resume, overwrite, error."),
    (["retry_failed=yes please"], "retry_failed=yes please must be true or false."),
    (["study=../x"], "study=../x must be a folder's name"),
    (["data=text_csv", "model=lstm"], "data.path is not set and has no default."),
    (["data=text_csv", "model=lstm", "data.path=no.csv"], "data.path=no.csv is not there (seen from "),
    (
        ["data=mnist", "data.root=nowhere", "data.download=false"],
        "data.root=nowhere is not there (seen from ",
    ),
    (
        ["data=mnist", "data.root=/", "data.download=false"],
        "data.root=/ holds no MNIST/raw/. Give the folder that holds MNIST/raw/, or",
    ),
    (
        ["data=mnist", "data.root=nowhere/mnist"],
        "nowhere is not there. Give a folder that holds MNIST/raw/, or one to download it to",
    ),
    (["data=mnist", f"data.root={__file__}"], "is not a folder. Give the folder that holds MNIST/raw/."),
    (["data=image_folder", "data.path=/"], "data.path=/ has no folder train/."),
    (["data=text_csv", "model=lstm", "data.path=/"], "data.path=/ is a folder. data=text_csv reads a file"),
    (["model=custom", "model._target_=no_such.Net"], "model._target_=no_such.Net: no module no_such in "),
    (["model=custom", "model._target_=Net"], "model._target_=Net is not a path as in an import."),
    (
        ["model=custom", "model._target_=my-net.Net"],
        "model._target_=my-net.Net is not a path as in an import.",
    ),
    (
        ["seed=0,1"],
        "seed=0,1 gives several values to a single run. Start a sweep with python -m mpx.train -m.\n",
    ),
    (
        ["model=mlp,lstm"],
        "model=mlp,lstm gives several values to a single run. Start a sweep with python -m mpx.train -m.\n",
    ),
    (["model.widths=8,8"], "Start a sweep with python -m mpx.train -m, or write a list as model.widths=[…]."),
    (["model=timm"], "model.name is not set and has no default."),
    (
        ["sparsity=2of4", "sparsity.start=1.0"],
        "sparsity.start=1.0 must be a number of at least 0 and below 1.",
    ),
    (
        ["model=resnet18", "data=sst2"],
        "model=resnet18 with data=sst2: this model takes images, the data set is labelled text.",
    ),
    (
        ["model=mlp", "data=wikitext2"],
        "this model takes images or labelled text, the data set is text for language modelling.",
    ),
    (
        ["data.batch_size=2000"],
        "data.batch_size=2000 must be at most the 1297 training samples of data=digits.",
    ),
    (
        ["trainer.max_epochs=999999999999"],
        "trainer.max_epochs=999999999999 must be at most 2147483647. For example trainer.max_epochs=20.",
    ),
    (
        ["model=mlp", "model.lr.sgd=0.3"],
        "model.lr.sgd is for another optimizer than optimizer=adamw. Use model.lr.adamw, or leave it out.",
    ),
    (["ckpt_path=missing.ckpt"], "ckpt_path=missing.ckpt is not a file."),
    (["ckpt_path=x.ckpt", "if_exists=resume"], "ckpt_path and if_exists=resume both say where to continue."),
    (
        ["trainer.gradient_clip_algorithm=value"],
        "trainer.gradient_clip_algorithm=value needs trainer.gradient_clip_val.",
    ),
    (
        ["trainer.cuda_graphs=true", "trainer.accelerator=cpu"],
        "trainer.cuda_graphs=true is not possible: trainer.accelerator=cpu. Use",
    ),
    (
        ["trainer.cuda_graphs=true", "trainer.compile=reduce-overhead"],
        "trainer.compile=reduce-overhead makes its own. Use",
    ),
    (
        ["trainer.cuda_graphs=true", "trainer.accumulate_grad_batches=2"],
        "trainer.accumulate_grad_batches is above 1, so that",
    ),
    (
        ["precision=tf32", "precision.emulate=never", "trainer.accelerator=cpu"],
        "precision.emulate=never with precision=tf32 on a CPU",
    ),
    (
        ["precision=fp8", "precision.emulate=never", "trainer.accelerator=cpu"],
        "precision.emulate=never with precision=fp8 on a CPU",
    ),
    (
        ["precision=amp", "precision.loss_scale.initial=0"],
        "precision.loss_scale.initial=0 must be a number of at least 1e-38",
    ),
    (
        ["precision=amp", "precision.loss_scale.initial=1e9"],
        "precision.loss_scale.initial=1e+09 must lie between precision.loss_scale.floor",
    ),
    (
        ["precision=amp", "precision.loss_scale.growth_factor=1"],
        "precision.loss_scale.growth_factor=1 must be a number above 1.",
    ),
    (
        ["precision=amp", "precision.loss_scale.backoff_factor=2"],
        "precision.loss_scale.backoff_factor=2 must be a number above 0 and below 1.",
    ),
    (
        ["precision=amp", "precision.loss_scale.max_skips=0"],
        "precision.loss_scale.max_skips=0 must be a whole number of at least 1.",
    ),
    (
        ["precision=amp", "precision.loss_scale.flor=1"],
        "precision.loss_scale.flor: no such key. Did you mean precision.loss_scale.floor?",
    ),
    (
        ["data.crop=6", "data.augment=none"],
        "data.crop=6 is a random crop, and data.augment=none takes none. Use data.augment=crop_flip",
    ),
    (
        ["model=bert_small", "model.pretrained=./nowhere"],
        "model.pretrained=./nowhere is not a folder (seen from ",
    ),
    (
        ["+data.tta=flip"],
        "data.tta: the chosen data has no such key. Choose another data=, or leave the key out.",
    ),
    (
        ["model=lstm", "+model.kwargs.x=1"],
        "model.kwargs: the chosen model has no such key. Choose another model=",
    ),
    (
        ["model._target_=a.Net"],
        "model._target_: the chosen model has no such key. Add model=custom, or leave the key out.",
    ),
    (
        ["model=custom", "model._target_=a.Net", "model.kwargs.width=8"],
        "model.kwargs.width: an argument of the constructor is added with a +, as +model.kwargs.width=VALUE.",
    ),
    (
        ["model=hf", "model.name=llama", "model.kwargs={hidden_size:32}"],
        "model.kwargs: an argument of the constructor is added with a +, as +model.kwargs=VALUE.",
    ),
    (
        ["model=custom", "model._target_=a.Net", "+model.width=8"],
        "model.width is not a setting of mpx.train. Did you mean model.widths? An argument of your own "
        "class is +model.kwargs.width=",
    ),
    (
        ["precision=fp32", "precision.loss_scale.initial=4"],
        "precision.loss_scale.initial: the chosen precision has no such key. Choose",
    ),
    (
        ["precision=amp", "precision.loss_scale.initial=1e39"],
        "precision.loss_scale.initial=1e+39 must be a number of at least 1e-38 and at most 3e+38",
    ),
    (["numerics.every=0"], "numerics.every=0 must be a whole number of at least 1, or auto."),
    (["audit=yes please"], "audit=yes please must be true or false."),
    (["trainer.ema_decay=1"], "trainer.ema_decay=1 must be a number above 0 and below 1, or null."),
    (
        ["data=image_folder", "data.path=x", "data.augment=crop"],
        "data.augment=crop is not for data=image_folder. Use",
    ),
    (["trainer.compile=true"], "trainer.compile=true must be one of auto, off, default,"),
    (
        ["data=image_folder", "data.path=x", "data.loader=resident"],
        "data.loader=resident is not for data=image_folder",
    ),
    (
        ["model=bert_small", "model.num_heads=7"],
        "model.hidden_size=512 must be a multiple of model.num_heads=7. For example",
    ),
    (
        ["model=lstm", "data=wikitext2", "model.bidirectional=true"],
        "model.bidirectional=true on language modelling data",
    ),
    (
        ["model=lstm", "data=wikitext2", "model.embedding_size=32"],
        "model.tie_weights=true needs model.embedding_size=32 to equal",
    ),
    (["data=mnist", "data.val_size=5"], "data.val_size=5 must be a whole number of at least 10."),
    (
        ["precision.mode=amp"],
        "precision.mode belongs to the choice of precision and is not set by itself. Use precision=CHOICE",
    ),
    (["optimizer.name=adamw"], "optimizer.name belongs to the choice of optimizer"),
    (["model.name=resnet18"], "model.name belongs to the choice of model"),
    (["trainer.strategy=fsdp"], "trainer.strategy=fsdp must be one of auto, ddp."),
    (["optimizer.momentum=0"], "optimizer.nesterov=true needs optimizer.momentum above 0."),
    (
        ["--lr=0.1"],
        "--lr: no such option. Settings are written key=value, without dashes. Did you mean "
        "optimizer.lr? python -m",
    ),
    (
        ["--max-epochs", "3"],
        "--max-epochs: no such option. Settings are written key=value, without dashes. Did you mean "
        "trainer.max_epochs?",
    ),
    (["lr=0.1"], "lr: no such key. Did you mean optimizer.lr?"),
    (["batchsize=8"], "batchsize: no such key. Did you mean data.batch_size?"),
    (["precision=null"], "precision=null: no such choice. Allowed: amp, amp_bf16,"),
    (
        ["sparsity=0.5"],
        "sparsity=0.5: no such choice. Allowed: 2of4, 2of4_2d, dense, nofm, unstructured; or leave it out.",
    ),
    (["seed=${nosuch}"], "seed: Interpolation key 'nosuch' not found"),
    (
        ["data=mnist", "data.root=~/no/such/folder"],
        "/no/such is not there. Give a folder that holds MNIST/raw/",
    ),
    (["ckpt_path=a/lr=1/last.ckpt"], "ckpt_path=a/lr=1/last.ckpt is not a file"),
    (["resnet20"], "'resnet20' is not a setting: write key=value, as precision=amp.\n"),
    (["optimizer.lr=[0.1"], "'optimizer.lr=[0.1' is not a setting"),
    (["seed=choice(1,2)"], "seed=choice(1,2) gives several values to a single run."),
    (["trainer.ema_decay={}"], "trainer.ema_decay={} must be a number above 0 and below 1, or null."),
    (["study={}"], "study={} must be a folder's name"),
    (
        ["data=synthetic", "data.shape={}"],
        "data.shape={} must be a list of at least 1, each a whole number of at least 1.",
    ),
    (["model=lstm", "model.lr.adamw=x"], "model.lr.adamw=x must be a number above 0."),
    (["model=timm", "model.name=x", "model.family=3"], "model.family belongs to the choice of model"),
    (
        ["+sparsity.coverage=true"],
        "sparsity.coverage: the chosen sparsity has no such key. Choose another sparsity=, or leave the "
        "key out.",
    ),
    (["+data.root=x"], "data.root: the chosen data has no such key."),
    ([f"ckpt_path={'x' * 300}"], "is not a file. Give the path of a .ckpt that mpx wrote"),
    (
        ["sparsity=2of4", f"sparsity.dense_ckpt={'x' * 300}"],
        "is not a file. Give a checkpoint of a dense run",
    ),
    (["data=mnist", f"data.root={'x' * 300}", "data.download=false"], "is not there (seen from "),
    (["data=text_csv", "model=lstm", f"data.path={'x' * 300}"], "is not there (seen from "),
    (
        ["model=custom", "model._target_=json.X", "model.kwargs=5"],
        "model.kwargs=5 must be names with values. For example",
    ),
    (
        ["numerics=[1]"],
        "numerics=[1]: numerics is not a single value. Set its keys, as numerics.every=VALUE.",
    ),
    (["model.lr=0.1"], "model.lr=0.1: model.lr is not a single value. Set its keys, as model.lr.sgd=VALUE."),
    (
        ["precision=amp", "precision.loss_scale=128"],
        "precision.loss_scale=128: precision.loss_scale is not a single value. Set its keys,",
    ),
    ([f"study={'x' * 300}"], "output_dir: cannot write "),
    (
        ["model.lr.sgd=0.3", "optimizer.lr=0.2"],
        "optimizer.lr=0.2 takes the place of model.lr.sgd=0.3. Give one of them.",
    ),
    (["model=mlp.yaml"], "model=mlp.yaml: no such choice. Allowed: bert_base,"),
    (["model=../model/mlp"], "model=../model/mlp: no such choice. Allowed: bert_base,"),
    (["model='./mlp'"], "model='./mlp': no such choice. Allowed: bert_base,"),
    (["-m", "model=lstm,mlp.yaml"], "model=mlp.yaml: no such choice. Allowed: bert_base,"),
    (["data=mnist", "data.root='~/no/such folder'"], "/no is not there. Give a folder that holds MNIST/raw/"),
    (["ckpt_path='a\nb'"], "ckpt_path=a b is not a file."),
    (
        ["+module={_target_:mpx.Net}", "++model={lr:{sgd:1}}"],
        "model.lr.sgd=1: the module of module._target_=mpx.Net brings its own model.",
    ),
    (['model.lr={ "sgd":1}'], "'model.lr={ \"sgd\":1}' is not a setting: write key=value, quoting values"),
    (["model.lr.sgd={}"], "model.lr.sgd={} must be a number above 0."),
    (["precision=amp", "++precision={loss_scale.initial:4}"], "Write loss_scale: {initial: VALUE} there."),
]


@pytest.mark.parametrize(("overrides", "message"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_mistake_in_the_configuration(train, overrides, message):
    ran = train(*overrides)
    assert_refused(ran, message)
    assert ran.out == ""


def test_without_a_driver_a_gpu_is_refused_at_once(train, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for overrides, message in (
        (["trainer.accelerator=gpu"], "trainer.accelerator=gpu: no CUDA device is visible here."),
        (
            ["precision=fp8", "precision.emulate=never"],
            "precision.emulate=never with precision=fp8 on a CPU: CPUs have no FP8.",
        ),
    ):
        assert_refused(train(*overrides), f"error: {message}")


@pytest.mark.parametrize(("deep", "name"), [("MNIST/raw", "mnist"), ("MNIST", "mnist"), ("SST-2", "sst2")])
def test_a_root_that_is_too_deep_is_recognised(train, tmp_path, deep, name):
    (tmp_path / {"mnist": "MNIST/raw", "sst2": "SST-2"}[name]).mkdir(parents=True)
    ran = train(f"data={name}", "model=mlp", f"data.root={tmp_path / deep}")
    assert_refused(ran, f"but {tmp_path} does. Use data.root={tmp_path}.")


def test_a_value_may_be_that_of_another_key(tmp_path):
    ran = start(main, tmp_path, "optimizer.lr=${model.lr.adamw}", "trainer.max_epochs=${nosuch}")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: trainer.max_epochs: Interpolation key 'nosuch' not found. Write ${KEY}")


def test_mistake_in_a_sweep_leaves_no_folder(train):
    # -m stands anywhere
    assert_refused(train("seed=0,1", "-m", "precision=fp32,ampp"), "precision=ampp: no such choice")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "optimizer.lr=interval(0.1,1)",
            "optimizer.lr=interval(0.1,1): only a search draws from an interval. Write the values of a "
            "grid, as 0.1,0.2,0.5.",
        ),
        ("output_dir=1", "output_dir=1 must be a text. For example output_dir=outputs."),
        ("output_dir={a:1}", "output_dir={'a': 1} must be a text."),
        ("output_dir=${nosuch}", "output_dir: Interpolation key 'nosuch' not found."),
        (
            "output_dir=a,b",
            "output_dir: a sweep has one, in which its jobs leave reports. Start one sweep "
            "for each, or give each",
        ),
        (
            "hydra.sweep.dir=mine",
            "hydra.sweep.dir=mine: mpx names the folders of a sweep, and removes them. Leave it out.",
        ),
        (
            "gpu_share=4",
            "gpu_share is not a setting of mpx.train: each job has its GPU to itself. Use "
            "hydra.launcher.n_jobs=N",
        ),
        (
            "+gpu_share=4",
            "gpu_share is not a setting of mpx.train: each job has its GPU to itself. Use "
            "hydra.launcher.n_jobs=N",
        ),
        (
            "hydra/launcher=basic",
            "hydra/launcher=basic: mpx starts jobs by local, joblib, submitit_local "
            "or submitit_slurm. Leave it",
        ),
        (f"output_dir={'x' * 300}", "output_dir: cannot write xxx"),
    ],
)
def test_a_sweep_that_cannot_begin(tmp_path, word, message):
    ran = start(main, tmp_path, "-m", word)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_whose_output_folder_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    ran = start(main, tmp_path, "-m", "seed=0,1", "output_dir=file")
    assert ran.code == 2
    assert ran.err.startswith("error: output_dir: cannot write file/_sweep/")
    assert ran.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("precision=amp trainer.max_epochs=-1 seed=0,1", "trainer.max_epochs=-1 must be a whole number of "
                                                         "at least 1."),
        ("data.batch_size=64,-1", "data.batch_size=-1 must be a whole number of at least 1."),
        ("data.batch_size=choice(64,-1) hydra/launcher=joblib", "data.batch_size=-1 must be a whole number "
                                                                "of at least 1."),
        ("trainer.max_epochs=0 until=decided precision=fp32,amp", "trainer.max_epochs=0 must be a whole "
                                                                  "number of at least 1."),
        ("data=cifar10 data.root=nowhere data.download=false seed=0,1", "data.root=nowhere is not there"),
        ("optimizer=sgd optimizer.nesterov=true optimizer.momentum=0.0,0", "optimizer.nesterov=true needs "
                                                                           "optimizer.momentum above 0."),
        ("+model.kwargs.width=4,8 model=custom model._target_=nowhere.Net", "model._target_=nowhere.Net: "
                                                                            "no module nowhere"),
        ("experiment=loss_scaling optimizer.lr=0 data.root=.", "optimizer.lr=0 must be a number above 0."),
        ("hydra/launcher=submitit_local data.batch_size=-1 seed=0,1", "data.batch_size=-1 must be a whole "
                                                                      "number of at least 1."),
    ],
)  # fmt: skip
def test_a_mistake_of_a_sweep_is_said_once_before_its_first_job(tmp_path, words, line):
    ran = start(main, tmp_path, "-m", *words.split())
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"error: {line}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_reference_to_another_key_is_no_mistake_of_a_sweep(forked):
    words = ["model=mlp", "trainer.max_steps=2", "data.batch_size=${trainer.max_steps}", 'label="a b"']
    ran = forked("-m", *words, "seed=0")
    assert ran.code == 0, ran.err


def test_a_sweep_with_no_job_at_once(tmp_path):
    ran = start(main, tmp_path, "-m", "seed=0,1", "hydra/launcher=joblib", "hydra.launcher.n_jobs=0")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert ran.err.startswith("error: hydra.launcher.n_jobs=0 must be a whole number of at least 1, or -1")
    assert list(tmp_path.iterdir()) == []


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


def test_help_lists_the_groups_that_a_user_chooses_from(tmp_path):
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "mine.yaml").write_text("family: mlp\n")
    ran = start(main, tmp_path, "--help", "--config-dir", "own")
    assert ran.code == 0
    groups = ran.out.split("as group=name\n")[1].split("\n\n")[0].splitlines()
    assert [line.split(": ")[0] for line in groups] == [
        "task", "model", "data", "precision", "sparsity", "optimizer", "schedule", "trainer", "project",
        "until", "experiment",
    ]  # fmt: skip
    assert "mine" in groups[1]
