"""Texts of similar length share a batch: the order, the lengths, and what a model makes of them."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from omegaconf import OmegaConf

import mpx.data
from mpx.data.lengths import MOST, STEP, Lengths, chosen_lengths, tokens_of
from mpx.data.loaders import EvalLoader, TrainLoader
from mpx.data.order import train_steps
from mpx.data.readers import ResidentReader
from mpx.data.splits import Texts
from mpx.errors import UserError
from mpx.models import build
from mpx.models.probe import reads_padding
from mpx.train import CONF

PAD = 0


def texts(tokens, longest):
    """Texts of ones and padding, with as many tokens as said."""
    places = torch.arange(longest)
    ids = (places < torch.tensor(tokens)[:, None]).int()
    return Texts(ids, torch.arange(len(tokens)))


def skewed(count=1000, longest=64):
    drawn = torch.Generator().manual_seed(0)
    return (3 + torch.rand(count, generator=drawn).pow(3) * (longest - 2)).int().tolist()


def loader(split, batch_size=8, rank=0, world=1, seed=0):
    tokens = tokens_of(split.ids, PAD)
    lengths = Lengths(tokens, chosen_lengths(tokens, int(tokens.max()), split.ids.shape[1]))
    reader = ResidentReader(split, seed, torch.device("cpu"))
    return TrainLoader(reader, len(split), batch_size, seed, rank, world, lengths)


def taken(loader, epoch=0):
    loader.set_epoch(epoch)
    return [(x.shape[1], y.tolist()) for x, y in loader]


@pytest.mark.parametrize(
    ("tokens", "longest", "allowed"),
    [
        (skewed(), 64, None),
        (skewed(longest=500), 500, None),
        ([5] * 20, 64, (8,)),
        ([3], 64, (8,)),
        ([64] * 4, 64, (64,)),
        ([61, 3], 61, None),
        ([*[9] * 90, 60], 64, None),
    ],
)
def test_chosen_lengths(tokens, longest, allowed):
    chosen = chosen_lengths(torch.tensor(tokens), max(tokens), longest)
    assert allowed is None or chosen == allowed
    assert len(chosen) <= MOST
    assert max(tokens) <= chosen[-1] <= longest
    assert all(length % STEP == 0 or length == longest for length in chosen)
    assert list(chosen) == sorted(set(chosen))


def test_an_epoch_has_the_samples_of_the_ungrouped_one_and_little_padding():
    split = texts(skewed(), 64)
    batches = taken(loader(split))
    order = train_steps(1000, 8, seed=0, epoch=0)
    assert sorted(sample for _, y in batches for sample in y) == sorted(torch.cat(order).tolist())
    tokens = tokens_of(split.ids, PAD)
    assert all(length >= tokens[y].max() for length, y in batches)
    assert sum(8 * length for length, _ in batches) < 1.35 * int(tokens.sum())
    lengths = [length for length, _ in batches]
    assert lengths != sorted(lengths), "the batches of a window are shuffled"


def test_the_order_depends_on_seed_and_epoch_only():
    split = texts(skewed(), 64)
    first = taken(loader(split))
    torch.rand(3)  # the global generator has no part in it
    assert taken(loader(split)) == first
    assert taken(loader(split), epoch=1) != first
    assert taken(loader(split, seed=1)) != first


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_take_the_same_length_and_together_the_batches_of_one(world):
    split = texts(skewed(), 64)
    ranks = [taken(loader(split, rank=rank, world=world)) for rank in range(world)]
    alone = taken(loader(split, batch_size=8 * world))
    for parts, (length, samples) in zip(zip(*ranks, strict=True), alone, strict=True):
        assert {part for part, _ in parts} == {length}
        assert sorted(sample for _, y in parts for sample in y) == sorted(samples)


def test_a_resumed_epoch_goes_on_with_the_next_batch():
    split = texts(skewed(), 64)
    unbroken, broken, resumed = (loader(split) for _ in range(3))
    expected = taken(unbroken, epoch=1)
    broken.set_epoch(1)
    list(itertools.islice(iter(broken), 40))
    resumed.load_state_dict(broken.state_dict())
    assert taken(resumed, epoch=1) == expected[40:]


def test_evaluation_keeps_the_order_and_cuts_each_batch():
    split = texts([3, 4, 20, 6, 64], 64)
    lengths = Lengths(tokens_of(split.ids, PAD), (8, 32, 64))
    reader = ResidentReader(split, 0, torch.device("cpu"))
    batches = EvalLoader(reader, 5, 2, lengths=lengths)
    assert [(x.shape[1], y.tolist()) for x, y in batches] == [(8, [0, 1]), (32, [2, 3]), (64, [4])]


def test_a_class_for_each_token_is_cut_with_the_text():
    split = texts([3, 4], 64)
    split = Texts(split.ids, split.ids.long())
    lengths = Lengths(tokens_of(split.ids, PAD), (8, 64))
    x, y = next(iter(EvalLoader(ResidentReader(split, 0, torch.device("cpu")), 2, 2, lengths=lengths)))
    assert x.shape == y.shape == (2, 8)
    assert torch.equal(x, y)


@pytest.fixture
def reviews(tmp_path):
    """A file of texts of 1 to 40 words."""
    rows = [f"{'good ' * (i % 40)}{'fine' if i % 2 else 'dull'},{i % 2}\n" for i in range(400)]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(rows))
    return ["data=text_csv", f"data.path={tmp_path}/reviews.csv", f"data.cache={tmp_path}/cache",
            "data.seq_len=64", "data.batch_size=16", "trainer.max_epochs=2", "trainer.warmup_steps=0",
            "trainer.accelerator=cpu"]  # fmt: skip


TINY_BERT = ["model=bert_small", "model.num_layers=1", "model.hidden_size=32", "model.num_heads=2"]


@pytest.mark.parametrize("model", [["model=lstm", "model.hidden_size=16"], TINY_BERT, ["model=mlp"]], ids=str)
def test_a_run_has_less_padding_and_counts_the_operations_of_its_tokens(train, reviews, model):
    records = []
    for lengths in ("fixed", "auto"):
        ran = train(*reviews, *model, f"data.lengths={lengths}", f"study={lengths}")
        assert ran.code == 0, ran.err
        assert ("data.lengths=auto puts similar lengths together" in ran.out) == (lengths == "fixed")
        (folder,) = [folder for folder in ran.folders if f"/{lengths}/" in str(folder)]
        records.append(json.loads((folder / "result.json").read_text()))
    before, after = (record["data"] for record in records)
    assert before["lengths"] == [64]
    assert after["lengths"] == [8, 16, 24, 32, 40, 48]
    assert before["tokens_per_sample"] == after["tokens_per_sample"]
    assert before["padding_fraction"] > 0.6
    assert after["padding_fraction"] < 0.3
    speeds = [record["speed"] for record in records]
    flops = [speed["model_tflops_per_s"] / speed["train_samples_per_s"] for speed in speeds]
    assert flops[1] < (0.7 * flops[0] if model != ["model=mlp"] else 1.01 * flops[0])
    for speed in speeds:
        tokens = before["tokens_per_sample"]
        assert speed["train_tokens_per_s"] == pytest.approx(speed["train_samples_per_s"] * tokens)


@pytest.mark.parametrize(
    ("model", "reads"),
    [
        ({"family": "lstm"}, False),
        ({"family": "lstm", "bidirectional": True}, True),
        ({"family": "bert", "hidden_size": 32}, False),
        ({"family": "mlp"}, False),
    ],
    ids=str,
)
def test_which_models_read_padding(config, model, reads):
    """The others give the same results for a text of 8 tokens and for the same text with 24 of padding."""
    made = config("synthetic", kind="text", shape=[32], classes=4, vocab_size=50, samples=64)
    spec = replace(mpx.data.load(made).spec, padded=True)
    file = {"lstm": "lstm", "bert": "bert_small", "mlp": "mlp"}[model["family"]]
    settings = dict(OmegaConf.load(CONF / "model" / f"{file}.yaml").items()) | model
    assert reads_padding(build(settings, spec), spec, 8) is reads


def test_a_model_that_reads_padding_gets_one_length(train, reviews):
    both_ways = ["model=lstm", "model.hidden_size=16", "model.bidirectional=true"]
    ran = train(*reviews, *both_ways, "data.lengths=auto")
    assert ran.record["data"]["lengths"] == [64]
    assert (
        "data.lengths=auto: all batches have one length, since the model's results depend on pad" in ran.out
    )
    refused = train(*reviews, *both_ways, "data.lengths=[16,64]")
    assert refused.code == 2
    assert "data.lengths=[16, 64] is not for this model" in refused.err


def test_a_list_must_reach_the_longest_text(train, reviews):
    ran = train(*reviews, "model=lstm", "data.lengths=[8,16]")
    assert ran.code == 2
    assert "data.lengths=[8, 16] must end with a length from 42," in ran.err


@pytest.mark.parametrize("older", [{}, {"allowed": [64]}], ids=["none", "one length"])
def test_an_older_checkpoint_in_the_middle_of_an_epoch_had_one_length(older):
    made = TrainLoader(None, 64, 8, seed=0)
    state = {name: value for name, value in made.state_dict().items() if name != "allowed"} | {"position": 3}
    made.load_state_dict(state | older)
    assert made.position == 3
    grouped = TrainLoader(None, 64, 8, seed=0, lengths=Lengths(torch.ones(64).long(), (8, 16)))
    with pytest.raises(UserError, match=r"^data\.lengths is \[8, 16\] but .* with fixed: resume with fixed"):
        grouped.load_state_dict(state | older)
