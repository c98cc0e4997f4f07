"""sparsity.permute=true in a run: more magnitude is kept, nothing else changes."""

import pytest
from few_steps import FEW_STEPS

SHORT = [*FEW_STEPS, "trainer.limit_train_batches=6", "trainer.ema_decay=0.9"]


@pytest.mark.parametrize("precision", ["fp32", "o2", "fp16_true"])
def test_more_magnitude_is_kept(train, precision):
    permuted = ("sparsity=2of4", "sparsity.permute=true")
    ran = train("model=mlp", f"precision={precision}", *permuted, *SHORT, "optimizer=sgd")
    assert ran.code == 0, ran.err
    sparsity = ran.record["sparsity"]
    assert sparsity["verified"] is True
    found = sparsity["permutation"]
    assert found["reason"] is None
    assert found["kept_after"] > found["kept_before"]
    assert {row["name"] for row in found["layers"]} == {
        row["name"] for row in sparsity["layers"] if row["pruned"]
    }


NETS = """
from torch import nn

class Straight(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, num_classes)

    def forward(self, x):
        return self.c(self.b(self.a(x.flatten(1)).relu()).relu())

class Branching(Straight):
    def forward(self, x):
        return super().forward(x if float(x.sum()) > -1e9 else -x)
"""


@pytest.mark.parametrize(
    ("net", "lines"),
    [
        ("Straight", ["2of4 then keeps 7"]),
        ("Branching", ["none: torch.export cannot trace this model: "]),
    ],
)
def test_what_could_not_be_permuted_is_said(forked, tmp_path, net, lines):
    (tmp_path / "my_nets.py").write_text(NETS)
    own = ["model=custom", f"model._target_=my_nets.{net}", "data=digits"]
    permuted = ["sparsity=2of4", "sparsity.permute=true", "sparsity.start_step=1"]
    ran = forked(*own, *permuted, *SHORT, "optimizer=sgd")
    assert ran.code == 0, ran.err
    assert all(line in ran.out for line in lines), ran.out
    assert "def forward" not in ran.err  # the graph that torch.export prints where it fails
