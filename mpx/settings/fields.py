"""Every key of mpx.train, and of mpx.bench, with the rule for its value. The files of a group share the rules
of their common keys.
"""

import re
from dataclasses import replace

from mpx.settings.data import OWN_FAMILIES, TASKS
from mpx.settings.rules import Rule, choice, either, flag, folder_name, many, number, text, whole

# groups whose choices every setting has, and begins its name with
NAMED = ("model", "data", "precision", "sparsity")
# tables, plots and Markdown need not escape these characters
LABELS = re.compile(r"[A-Za-z0-9(][\w .+()-]{0,39}(?<! )", re.ASCII)
SCALES = (1e-38, 3e38)  # range in which a loss scale and its inverse are FP32 numbers
LIMIT = either(whole(1, example=8), number(0, 1, open_low=True, example=0.1))

LABEL = Rule(
    "a name of at most 40 English letters, digits, spaces and . _ + - ( ), or null",
    lambda v: v is None or (isinstance(v, str) and LABELS.fullmatch(v) is not None),
    "baseline",
    False,
)

RUN = {
    "study": folder_name("default"),
    "label": LABEL,
    # no part of the setting's name: the run's folder is seed<N>
    "seed": whole(0, 2**32 - 1, example=0, result=False),
    "if_exists": choice("auto", "new", "skip", "resume", "overwrite", "error", result=False),
    "retry_failed": flag(result=False),
    "label_smoothing": number(0, 1, open_high=True, example=0.1),
    "speed": choice("auto", "plain"),
    "ckpt_path": text(
        also=(None,), example="outputs/default/SETTING/seed0/checkpoints/last.ckpt", result=False
    ),
    "output_dir": text(example="outputs", result=False),
}

SEEDS_EACH = 4  # at least, for each look
UNTIL = {
    "until.margin": replace(number(0, 1, open_low=True, open_high=True, example=0.01), changes_result=False),
    "until.confidence": replace(number(0.5, 1, open_high=True, example=0.95), changes_result=False),
    "until.control": text(example="fp32-dense", result=False),
    "until.max_seeds": whole(SEEDS_EACH, 1000, example=20, result=False),
    "until.looks": whole(1, 20, example=5, result=False),
}

OPTIMIZER = {
    "optimizer.name": choice("sgd", "adamw"),
    "optimizer.lr": number(0, open_low=True, example=0.1),
    "optimizer.momentum": number(0, 1, open_high=True, example=0.9),
    "optimizer.nesterov": flag(),
    "optimizer.weight_decay": number(0, example=0.01),
    "optimizer.betas": many(
        number(0, 1, open_high=True, example=0.9), least=2, most=2, example="[0.9,0.999]"
    ),
    "optimizer.eps": number(0, open_low=True, example=1e-8),
    "schedule.name": choice("cosine", "linear", "constant", "step"),
    "schedule.warmup": number(0, 1, open_high=True, example=0.05),
    "schedule.final": number(0, 1, example=0.0),
    "schedule.restart": number(0, 1, open_low=True, open_high=True, also=(None,), example=0.5),
    "schedule.milestones": many(
        number(0, 1, open_low=True, open_high=True, example=0.5), example="[0.5,0.75]"
    ),
    "schedule.factor": number(0, 1, open_low=True, example=0.1),
}

PRECISION = {
    "precision.mode": choice(
        "fp32", "tf32", "amp", "amp_bf16", "fp16_true", "bf16_true", "fp8", "o0", "o1", "o2", "o3"
    ),
    "precision.emulate": choice("auto", "always", "never"),
    "precision.strict": flag(result=False),
    "precision.layers": choice("faster", "all"),
    "precision.loss_scale.dynamic": flag(),
    "precision.loss_scale.initial": number(*SCALES, example=65536),
    "precision.loss_scale.growth_factor": number(1, open_low=True, example=2.0),
    "precision.loss_scale.backoff_factor": number(0, 1, open_low=True, open_high=True, example=0.5),
    "precision.loss_scale.growth_interval": whole(1, example=2000),
    "precision.loss_scale.floor": number(*SCALES, example=1e-4),
    "precision.loss_scale.ceiling": number(*SCALES, example=16777216),
    "precision.loss_scale.max_skips": whole(1, example=25),
    "numerics.every": whole(1, also=("auto",), example=200, result=False),
    "numerics.histogram": flag(result=False),
    "audit": flag(result=False),
    "profile": flag(result=False),
}

SPARSITY = {
    "sparsity.pattern": choice("dense", "2of4", "2of4_2d", "nofm", "unstructured"),
    "sparsity.n": whole(1, 31, example=4),
    "sparsity.m": whole(2, 32, example=8),
    "sparsity.density": number(0, 1, open_low=True, open_high=True, example=0.5),
    "sparsity.search": choice("best", "greedy"),
    "sparsity.backend": choice("mpx", "apex"),
    "sparsity.recipe": choice("asp", "one_shot", "from_start", "gradual", "sr_ste"),
    "sparsity.start": number(0, 1, open_high=True, example=0.5),
    "sparsity.start_step": whole(0, also=(None,), example=1000),
    "sparsity.end": number(0, 1, open_low=True, open_high=True, example=0.75),
    "sparsity.decay": number(0, example=2e-4),
    "sparsity.dense_ckpt": text(also=(None,), example="outputs/default/SETTING/seed0/checkpoints/last.ckpt"),
    "sparsity.shape_rule": choice("hardware", "any"),
    "sparsity.types": many(
        choice("Linear", "Conv1d", "Conv2d", "Conv3d", "LSTM", "GRU", "MultiheadAttention"),
        least=1,
        example="[Linear]",
    ),
    "sparsity.skip": many(text(), example='["fc"]'),
    "sparsity.only": many(text(), example='["encoder.*"]'),
    "sparsity.permute": flag(),
    "sparsity.coverage": flag(result=False),
    "sparsity.sensitivity": flag(result=False),
}

TRAINER = {
    "trainer.max_epochs": whole(1, example=20),
    "trainer.max_steps": whole(1, also=(-1,), example=100),
    "trainer.accelerator": choice("auto", "cpu", "gpu"),
    "trainer.devices": either(whole(1, also=("auto",), example=2), many(whole(0), least=1, example="[0,1]")),
    "trainer.num_nodes": whole(1, example=2),
    "trainer.accumulate_grad_batches": whole(1),
    "trainer.gradient_clip_val": number(0, open_low=True, also=(None,), example=1.0),
    "trainer.gradient_clip_algorithm": choice("norm", "value"),
    "trainer.early_stopping": text(also=(None,), example="val/loss"),
    "trainer.early_stopping_patience": whole(1, also=(None,), example=3),
    "trainer.ema_decay": number(0, 1, open_low=True, open_high=True, also=(None,), example=0.999),
    "trainer.compile": choice("auto", "off", "default", "reduce-overhead", "max-autotune"),
    "trainer.cuda_graphs": choice("auto", True, False),
    "trainer.benchmark": choice("auto", True, False),
    "trainer.channels_last": choice("auto", True, False),
    "trainer.log_every_n_steps": whole(1, example=20, result=False),
    "trainer.check_val_every_n_epoch": whole(1, result=False),
    "trainer.limit_train_batches": LIMIT,
    "trainer.limit_val_batches": LIMIT,
    "trainer.limit_test_batches": LIMIT,
    "trainer.warmup_steps": whole(0, example=10, result=False),
    "trainer.progress": choice("auto", "bar", "lines", "off", result=False),
    "trainer.save_every_s": replace(number(0, example=60), changes_result=False),
    "trainer.checkpoint_every_n_steps": whole(1, also=(None,), example=1000, result=False),
    "logger._target_": text(also=(None,), example="pytorch_lightning.loggers.CSVLogger", result=False),
}

DROP = number(0, 1, open_high=True, example=0.1)

DATA = {
    # the runs' folders are named after it
    "data.name": either(folder_name("reviews"), choice(None, result=False)),
    "data.family": choice(*OWN_FAMILIES),
    "data.kind": choice("image", "text", "lm"),
    "data._target_": text(example="my_data.make_data"),
    "data.task": choice(*TASKS),
    "data.batch_size": whole(1, example=64),
    "data.eval_batch_size": whole(1, example=256, result=False),
    "data.loader": choice("auto", "resident", "workers", "device", result=False),
    "data.workers": whole(0, also=("auto",), example=4, result=False),
    "data.root": text(example="DIR", result=False),
    "data.path": text(example="FILE_OR_DIR", result=False),
    "data.val_path": text(also=(None,), example="val.csv", result=False),
    "data.test_path": text(also=(None,), example="test.csv", result=False),
    "data.cache": text(example="DIR", result=False),
    "data.download": flag(result=False),
    "data.val_size": whole(10, example=2000),
    "data.val_share": number(0, 1, open_low=True, open_high=True, example=0.02),
    "data.augment": choice("none", "crop", "crop_flip"),
    "data.pad": whole(0, 64, example=4),
    "data.crop": whole(1, 4096, also=(None,), example=28),
    "data.cutout": whole(0, 1024, example=8),
    "data.tta": choice("none", "flip", "flip_shift"),
    "data.image_size": whole(1, 4096, also=(None,), example=32),
    "data.resize": whole(1, 4096, also=(None,), example=256),
    "data.mean": many(number(0, 1, example=0.5), least=1, example="[0.5]"),
    "data.std": many(number(0, 1, open_low=True, example=0.25), least=1, example="[0.25]"),
    "data.seq_len": whole(2, 65_536, example=64),
    "data.lengths": either(choice("fixed", "auto"), many(whole(1), least=1, example="[16,32,64]")),
    "data.tokenizer": text(example="wordpiece"),
    "data.vocab_size": whole(2, also=(None,), example=8000),
    "data.pad_id": whole(0, also=(None,), example=0),
    "data.text_column": text(example="text"),
    "data.label_column": text(example="label"),
    "data.shape": many(whole(1), least=1, most=3, example="[3,224,224]"),
    "data.classes": whole(2, also=(None,), example=1000),
    "data.samples": whole(8, example=2048),
}

MODEL = {
    "model.family": choice("resnet", "bert", "lstm", "mlp", "torchvision", "timm", "hf", "custom"),
    "model.name": text(also=(None,), example="resnet18"),
    "model._target_": text(example="my_package.my_module.Net"),
    "model.inputs": many(choice("image", "text", "lm"), least=1, example="[image]"),
    "model.lr.sgd": number(0, open_low=True, example=0.1),
    "model.lr.adamw": number(0, open_low=True, example=0.001),
    "model.stem": choice("auto", "small", "imagenet"),
    "model.widths": many(whole(1), example="[128,128]"),
    "model.hidden_size": whole(1, example=128),
    "model.num_layers": whole(1, example=2),
    "model.num_heads": whole(1, example=8),
    "model.intermediate_size": whole(1, also=(None,), example=2048),
    "model.embedding_size": whole(1, also=(None,), example=128),
    "model.bidirectional": flag(),
    "model.tie_weights": flag(),
    "model.dropout": DROP,
    "model.hidden_dropout": DROP,
    "model.attention_dropout": DROP,
    "model.pool": choice("mean", "first"),
    "model.patch": whole(1, also=("auto",), example=4),
    "model.pretrained": text(also=(None,), example="FOLDER_OR_HUB_NAME"),
}

PROJECT = {
    "module._target_": text(example="my_package.my_module.Segmenter"),
    "datamodule._target_": text(also=(None,), example="my_package.my_data.Pictures"),
    "metric": text(also=(None,), example="val/dice", result=False),
    "metric_goal": choice("max", "min", result=False),
}

FIELDS = {**RUN, **UNTIL, **OPTIMIZER, **PRECISION, **SPARSITY, **TRAINER, **DATA, **MODEL, **PROJECT}
SIDES = range(32, 32_769, 16)  # of a matrix; FP8 and int8 products on CUDA need multiples of 16
# values of `what`: mpx/bench/<what>.py
BENCHMARKS = ("formats", "gemm", "blas", "conv", "lstm", "attention", "triton")
BENCH = {  # of mpx.bench
    "what": choice(*BENCHMARKS),
    "accelerator": choice("auto", "cpu", "gpu"),
    "size": Rule(
        f"a multiple of {SIDES.step} from {SIDES[0]} to {SIDES[-1]}, or auto",
        lambda v: v == "auto" or (type(v) is int and v in SIDES),
        "1024",
    ),
    "output_dir": text(example="outputs"),
}
# they only set other keys (the groups' choices, and optimizer.lr), or say what else is told of the run
NOT_OF_THE_RESULT = ("task", "model.lr.", "logger.")
FREE = ("model.kwargs", "data.kwargs")  # arguments of a constructor, which checks them itself
FREE_BELOW = ("module.", "datamodule.", "logger.")  # the same, each key by itself


def changes_result(key: str) -> bool:
    """Whether two runs that differ in this key are different settings. A key without a rule, such as one of
    model.kwargs, counts.

    `seed` does not: it tells the runs of one setting apart.
    """
    return not key.startswith(NOT_OF_THE_RESULT) and (key not in FIELDS or FIELDS[key].changes_result)
