"""The callbacks in transformers.Trainer, on a tiny BERT from a configuration and sentences made here."""

import json

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

import mpx
from mpx.compare.collect import collect
from mpx.compat.transformers import RecorderCallback, SparsityCallback
from mpx.sparsity.patterns import NofM

LENGTH, STEPS = 8, 12


def samples(count):
    """Sentences whose label says whether their first word is one of the first ten."""
    words = torch.randint(1, 20, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row.tolist(), "labels": int(row[0] < 10)} for row in words]


def bert(vocab_size=20):
    set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(
        BertConfig(vocab_size=vocab_size, max_position_embeddings=64, **sizes)
    )


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def train(
    folder, *, sparsity="2of4", model=None, data=None, vocab_size=20, callbacks=(), seed=0, trainer=None,
    resume=None, evaluated=None,
    late=False, **arguments,
):  # fmt: skip
    """(recorder, model), after a training by transformers.Trainer and a test; with late=True a second test
    after the block.
    """
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    model, data = model or bert(vocab_size), data or samples(8 * STEPS - 3)
    given: dict = {"max_steps": STEPS, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "seed": seed}
    given |= {"logging_steps": 4, "save_strategy": "no", "eval_strategy": "steps", "eval_steps": 6}
    given |= {"report_to": [], "disable_tqdm": True, "use_cpu": True}
    pruning = [SparsityCallback(sparsity)] if sparsity != "dense" else []
    setting = {"model": "tiny_bert", "data": "words", "precision": "fp32", "sparsity": sparsity, "seed": seed}
    with mpx.Recorder(
        study="hf", setting=setting, model=model, output_dir=folder, warmup_steps=2
    ) as recorder:
        trainer = (trainer or Trainer)(
            model=model, args=TrainingArguments(str(folder / "trainer"), **given | arguments),
            train_dataset=data,
            eval_dataset=evaluated or data[:16], compute_metrics=accuracy,
            callbacks=[*pruning, RecorderCallback(recorder, *pruning), *callbacks],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        trainer.evaluate(data[16:32], metric_key_prefix="test")
    if late:
        trainer.evaluate(data[16:32], metric_key_prefix="test")
    return recorder, model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    class Look(TrainerCallback):
        def __init__(self):
            self.zeros, self.broken = [], []

        def on_step_end(self, args, state, control, model, **others):
            weight = model.bert.encoder.layer[0].intermediate.dense.weight
            self.zeros.append(float((weight == 0).float().mean()))
            self.broken.append(not NofM(2, 4).holds(weight))

    look = Look()
    recorder, model = train(tmp_path_factory.mktemp("hf"), callbacks=[look])
    return recorder, model, look


def test_masks_hold_from_the_middle_of_the_run(trained):
    _, _, look = trained
    assert look.zeros == [0.0] * (STEPS // 2) + [0.5] * (STEPS // 2)
    assert look.broken == [True] * (STEPS // 2) + [False] * (STEPS // 2)


def test_the_record_of_a_training_by_transformers(trained):
    recorder, _, _ = trained
    record = json.loads((recorder.folder / "result.json").read_text())
    assert record["status"] == "completed"
    assert set(record["metrics"]) == {"val/loss", "val/accuracy", "test/loss", "test/accuracy"}
    sparsity = record["sparsity"]
    assert (sparsity["verified"], sparsity["density"]) == (True, 0.5)
    assert 0.5 < sparsity["kept_magnitude"] < 1
    assert record["speed"]["measured_steps"] == STEPS - 2 * 2  # a warm-up at the start, one after the pruning
    assert record["speed"]["time_to_train_parts_s"]["validation"] > 0
    assert record["config"]["data"]["batch_size"] == 8
    curves = (recorder.folder / "curves.csv").read_text().splitlines()
    assert [line.rpartition(",")[0] for line in curves if line.startswith("train/loss")] == [
        "train/loss,4",
        "train/loss,8",
        "train/loss,12",
    ]
    assert [run.setting for run in collect(recorder.folder.parents[1])[0]] == ["fp32-2of4"]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_samples_are_those_of_the_batches(tmp_path, accumulated):
    """The last batch of an epoch is smaller."""
    counted = []

    class Counts(RecorderCallback):
        def on_step_end(self, args, state, control, **others):
            super().on_step_end(args, state, control, **others)
            counted.append(self._counted)

    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    setting = {"model": "tiny_bert", "data": "words", "precision": "fp32", "sparsity": "dense", "seed": 0}
    with mpx.Recorder(setting=setting, output_dir=tmp_path) as recorder:
        args = TrainingArguments(
            str(tmp_path / "trainer"), num_train_epochs=1, per_device_train_batch_size=8,
            gradient_accumulation_steps=accumulated,
            use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        Trainer(model=bert(), args=args, train_dataset=samples(27), callbacks=[Counts(recorder)]).train()
    assert counted == ([8, 8, 8, 3] if accumulated == 1 else [16, 11])


def test_a_training_that_begins_again_is_refused(tmp_path):
    """Batches that were made smaller without a word would be compared with those of the setting. So would a
    second Trainer.train.
    """
    model, forwards = bert(), []

    def fail_once(*_):
        forwards.append(True)
        if len(forwards) == 4:
            raise RuntimeError("CUDA out of memory.")

    model.bert.register_forward_hook(fail_once)
    smaller = {"auto_find_batch_size": True, "eval_strategy": "no", "max_steps": 6}
    with pytest.raises(mpx.UserError, match=r"records one Trainer\.train, and this is a second one, as auto"):
        train(tmp_path, sparsity="dense", model=model, **smaller)
    (file,) = tmp_path.glob("hf/*/seed0/result.json")
    assert json.loads(file.read_text())["status"] == "failed"


def test_a_continued_training(tmp_path):
    """It ends as the uninterrupted one did, and the record counts the steps before but knows no time to
    train.
    """
    often = {"save_strategy": "steps", "save_steps": 4}
    whole, model = train(tmp_path, **often)
    continued, same = train(tmp_path, **often, resume=str(tmp_path / "trainer" / "checkpoint-8"))
    assert all(
        torch.equal(one, other)
        for one, other in zip(model.state_dict().values(), same.state_dict().values(), strict=True)
    )
    assert continued.record["metrics"] == whole.record["metrics"]
    assert (
        continued.record["precision"]["optimizer_steps"]
        == whole.record["precision"]["optimizer_steps"]
        == STEPS
    )
    assert continued.record["environment"]["resumed_from_steps"] == [8]
    assert continued.record["speed"]["time_to_train_s"] is None
    assert (continued.folder / "curves.csv").read_text().splitlines()[1].startswith("train/loss,12,")


def test_a_loss_of_nan_is_recorded_as_such(tmp_path):
    """Trainer's logging_nan_inf_filter, on by default, logs 0 or the mean of earlier losses in its place."""
    recorder, _ = train(
        tmp_path, sparsity="dense", eval_strategy="no", learning_rate=1e30, lr_scheduler_type="constant"
    )
    losses = [
        line.split(",")[2]
        for line in (recorder.folder / "curves.csv").read_text().splitlines()
        if line.startswith("train/loss")
    ]
    assert losses == ["nan"] * 3
    assert recorder.record["error"] == "train/loss is infinite or NaN"


def test_mistakes():
    with pytest.raises(
        mpx.UserError, match=r"pattern='2of5' must be one of 2of4, 2of4_2d\. Did you mean 2of4"
    ):
        SparsityCallback("2of5")
    with pytest.raises(mpx.UserError, match=r"sparsity.start=1.5 must be a number of at least 0 and below 1"):
        SparsityCallback(start=1.5)


@pytest.mark.parametrize("order", ["missing", "after"])
def test_a_pruning_that_trainer_was_not_given_first(tmp_path, order):
    class Arguments:
        n_gpu = 0

    pruning = SparsityCallback()
    with pytest.raises(mpx.UserError, match=r"SparsityCallback has pruned nothing.*callbacks=\[pruning\]"):
        pruning.record()
    setting = {"model": "tiny_bert", "data": "words", "precision": "fp32", "sparsity": "2of4", "seed": 0}
    callback = RecorderCallback(mpx.Recorder(setting=setting, output_dir=tmp_path), pruning)
    handler = CallbackHandler(
        [callback] if order == "missing" else [callback, pruning], bert(), None, None, None
    )
    with pytest.raises(
        mpx.UserError, match=r"not given before it. Write Trainer\(…, callbacks=\[pruning, Rec"
    ):
        handler.on_train_begin(Arguments(), TrainerState(max_steps=4), TrainerControl())


def test_weights_that_no_optimizer_trains_stay_dense():
    model, pruning = bert(), SparsityCallback()
    layer = model.bert.encoder.layer[0]
    optimizer = torch.optim.SGD(layer.output.parameters(), lr=0.1)
    handler = CallbackHandler([pruning], model, None, optimizer, None)
    handler.on_train_begin(None, TrainerState(max_steps=4), TrainerControl())
    assert [weight.parameter is layer.output.dense.weight for weight in pruning.masks.pruned] == [True]
