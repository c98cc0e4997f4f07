"""Each public part alone in an ordinary Trainer, as a new user would try it: dict batches, several networks,
resumed runs.
"""

import pytest
import torch
from own_module import Module, fit, record_of

import mpx
from mpx.errors import UserError

# Lightning's hints about workers, loggers and the machine are not the subject here
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("recipe", ["asp", "one_shot", "from_start", "gradual", "sr_ste"])
def test_sparsity_alone(recipe, capsys):
    part = mpx.Sparsity("2of4", recipe=recipe)
    trainer = fit(part)
    if recipe == "one_shot":
        trainer.lightning_module.encoder = torch.nn.Linear(16, 32)  # another one than was trained
        part.prune_now(trainer)
    pruned = trainer.lightning_module.encoder.weight
    assert (pruned.reshape(-1, 4) != 0).sum(1).eq(2).all()
    assert part.record(fmt="fp32", device=torch.device("cpu"))["verified"]
    assert ("1 of 2 layers pruned to 2of4" in capsys.readouterr().out) == (recipe != "one_shot")


def test_sparsity_continues_a_checkpoint(tmp_path):
    path = tmp_path / "half.ckpt"
    fit(
        mpx.Sparsity(start=0.25),
        epochs=2,
        limit_train_batches=4,
        enable_checkpointing=True,
        default_root_dir=tmp_path,
    ).save_checkpoint(path)
    part = mpx.Sparsity(start=0.25)
    before = torch.load(path, weights_only=False)["callbacks"]["Pruning"]["masks"]["encoder.weight"]
    fit(part, ckpt=path)
    assert torch.equal(part.masks.masks["encoder.weight"], before)
    with pytest.raises(UserError, match=r"pruned to 2of4, mpx.Sparsity is unstructured.*same pattern"):
        fit(mpx.Sparsity("unstructured"), ckpt=path)


@pytest.mark.parametrize(
    ("mode", "theirs"), [("amp", None), ("fp32", None), (None, "bf16-mixed"), (None, "32-true")]
)
def test_numerics_and_throughput_alone(mode, theirs):
    numerics, throughput = mpx.Numerics(every=4, histogram=True), mpx.Throughput()
    fit(numerics, throughput, **({"plugins": mpx.Precision(mode)} if mode else {"precision": theirs}))
    found = numerics.record()
    assert found["gradient_samples"] == 8
    assert found["gradient_underflow_fraction"] is not None
    assert set(numerics.layers) == {"encoder", "head"}
    assert throughput.measured_steps == 22
    assert throughput.samples == 22 * 8
    assert throughput.record(None)["data_wait_fraction"] is None
    assert mpx.Numerics().every == 200  # auto


def test_precision_rounds_and_leaves_the_switches_as_they_were():
    before = torch.backends.cuda.matmul.fp32_precision
    plugin = mpx.Precision("amp", initial=1024.0)
    trainer = fit(plugins=plugin, epochs=1)
    assert plugin.record()["loss_scale"]["initial"] == 1024.0
    assert plugin.emulate
    assert plugin.steps == trainer.global_step == 8
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: mpx.Precision("am"), r"mpx.Precision\('am'\): no such mode. Did you mean amp\?"),
        (lambda: mpx.Precision("fp32", initial=2.0), r"scales no loss. Leave initial out"),
        (
            lambda: mpx.Precision("amp", initial=1e9),
            r"initial=1e\+09 must lie between floor=0.0001 and "
            r"ceiling=",
        ),
        (lambda: mpx.Precision("amp", start=1), r"no argument start"),
        (lambda: mpx.Sparsity("2of3"), r"mpx.Sparsity\('2of3'\): no such pattern. Did you mean 2of4"),
        (lambda: mpx.Sparsity(recipe="apex"), r"mpx.Sparsity\(recipe='apex'\) must be one of asp"),
        (lambda: fit(mpx.Sparsity(only=["head"])), r"finds nothing to prune"),
        (lambda: mpx.Record("a/b"), r"study=a/b must be a folder's name"),
        (
            lambda: mpx.Record(changes={"lr": torch.tensor(0.1)}),
            r"changes.lr=tensor\(0.1000\) must be a number.*For example changes.lr=0.1",
        ),
        (
            lambda: mpx.Record(changes={"seed": 1}),
            r"changes has the key 'seed', which is known from "
            r"mpx.Record\(seed=…\). Leave it out",
        ),
        (
            lambda: mpx.Record(metric="val_loss"),
            r"metric=val_loss should fall, but metric_goal=max. Use "
            r"metric_goal=min, or a name",
        ),
        (lambda: mpx.nothing, "module 'mpx' has no attribute 'nothing'"),
    ],
)
def test_mistakes_are_one_line(call, said):
    with pytest.raises((UserError, AttributeError), match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_all_parts_continue_a_checkpoint(tmp_path):
    """As an uninterrupted run: the same weights, masks, loss scale and counts, and a time to train over both
    parts.
    """

    def parts():
        record = mpx.Record(output_dir=tmp_path, data="noise")
        return record, mpx.Sparsity(start_step=8), mpx.Throughput(), mpx.Numerics(every=4)

    def run(*callbacks, **kwargs):
        return fit(*callbacks, plugins=mpx.Precision("amp", initial=1024.0, growth_interval=4), **kwargs)

    whole = run(*(uninterrupted := parts()))
    path = tmp_path / "half.ckpt"
    run(*(first := parts()), epochs=2, enable_checkpointing=True, default_root_dir=tmp_path).save_checkpoint(
        path
    )
    again = run(*(second := parts()), ckpt=path)
    for mine, theirs in zip(
        again.lightning_module.parameters(), whole.lightning_module.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
    assert (first[0].folder.name, second[0].folder.name) == ("seed0-2", "seed0-3")
    mine, theirs = record_of(second[0].folder), record_of(uninterrupted[0].folder)
    for name in ("optimizer_steps", "skipped_steps", "gradient_samples"):
        assert mine["precision"][name] == theirs["precision"][name]
    assert mine["precision"]["loss_scale"]["final"] == theirs["precision"]["loss_scale"]["final"] > 1024.0
    assert mine["sparsity"]["verified"]
    assert mine["speed"]["time_to_train_s"] > first[2].time_to_train_s


def test_an_optimizer_that_moves_pruned_weights_is_found_at_once():
    """Muon makes all directions of a matrix equally long, and so moves weights without gradient and
    momentum.
    """

    class Orthogonal(Module):
        def configure_optimizers(self):
            return torch.optim.Muon([weight for weight in self.parameters() if weight.dim() == 2], lr=0.02)

    module = Orthogonal()
    with pytest.raises(
        mpx.UserError, match="An optimizer that moves weights without gradients, such as Muon, changes them"
    ) as caught:
        fit(mpx.Sparsity("2of4", start=0.5), module=module)
    assert "When the first step after the pruning ended, 1 pruned weight broke" in str(caught.value)
    assert len(module.rates) == 16 + 1


@pytest.mark.parametrize(
    ("inputs", "said"), [(16, "broke the 2of4 pattern: encoder.weight"), (8, "no longer has encoder.weight")]
)
def test_a_pruned_layer_that_the_module_replaces_later_is_no_longer_verified(inputs, said, tmp_path):
    class Replacing(Module):
        def on_train_end(self):
            self.encoder = torch.nn.Linear(inputs, 32)

    with pytest.raises(mpx.UserError, match=said):
        fit(part := mpx.Sparsity("2of4"), module=Replacing()).save_checkpoint(tmp_path / "unused.ckpt")
    assert part.masks.active
