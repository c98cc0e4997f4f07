"""A second Trainer has nothing of the first: masks, folder, loss scale, counts."""

import pytest
import torch
from own_module import Module, fit, loader, record_of

import mpx

# Lightning's hints about workers, loggers and the machine are not the subject here
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("recipe", ["asp", "from_start", "sr_ste"])
def test_sparsity_and_record_of_a_second_trainer_are_its_own(tmp_path, recipe):
    """As in a loop over seeds with one list of callbacks: the masks are those of the second model, and the
    values, too.
    """
    parts = [mpx.Sparsity(recipe=recipe), mpx.Record(study="mine", output_dir=tmp_path)]
    found = []
    for scale in (1.0, 2.0):
        module = Module()
        with torch.no_grad():
            module.encoder.weight.mul_(scale).copy_(module.encoder.weight.roll(int(scale), 1))
        fit(*parts, module=module)
        record = record_of(parts[1].folder)
        assert record["sparsity"]["verified"]
        assert (module.encoder.weight == 0).float().mean() == 0.5
        found.append((parts[1].folder.name, record["metrics"]))
    assert [name for name, _ in found] == ["seed0", "seed0-2"]
    assert found[0][1] != found[1][1]


def test_the_loss_scale_and_the_steps_of_a_second_trainer_are_its_own():
    """A test after the training still has those of the training."""
    plugin, found = mpx.Precision("amp", initial=2.0**24, growth_interval=2), []
    for _ in range(2):
        torch.manual_seed(0)
        module = Module()
        trainer = fit(module=module, plugins=plugin, epochs=1)
        trainer.test(module, loader(), verbose=False)
        found.append((plugin.record(), module.head.weight.tolist()))
    assert found[0][0]["skipped_steps"] > 0
    assert found[0][0]["optimizer_steps"] + found[0][0]["skipped_steps"] == 8
    assert found[1] == found[0]


def test_a_checkpoint_that_could_not_be_continued_has_no_part_in_the_next_run(tmp_path):
    """The next run had its masks, and wrote its record over that of the checkpoint's run."""

    class OfTwo(Module):
        def configure_optimizers(self):
            return torch.optim.Adam([{"params": part.parameters()} for part in (self.encoder, self.head)])

    def parts():
        return [mpx.Sparsity(), mpx.Record(study="mine", model="net", output_dir=tmp_path)]

    fit(*parts()).save_checkpoint(tmp_path / "last.ckpt")
    pruning, record = parts()
    with pytest.raises(ValueError, match="parameter groups"):
        fit(pruning, record, module=OfTwo(), ckpt=tmp_path / "last.ckpt", epochs=6)
    fit(pruning, record, module=OfTwo())
    assert record.folder.name == "seed0-2"
    assert record_of(record.folder)["sparsity"]["verified"]
