"""Which of a module's own schedules start again at the pruning."""

from types import SimpleNamespace

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from mpx.sparsity.schedules import beginnings, restart_schedulers


@pytest.mark.parametrize(("length", "left", "again"), [(2, 20, True), (2, 25, True), (8, 20, False), (8, 5, False), (2, 5, False)])
def test_an_epochwise_schedule_starts_again_if_it_ends_within_the_steps_that_are_left(length, left, again, capsys):
    """An epoch has ten steps: with five left, no schedule comes to its end."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = LambdaLR(optimizer, lambda epoch: max(0.1, 1 - epoch / length))
    config = SimpleNamespace(scheduler=scheduler, interval="epoch", frequency=1)
    module = SimpleNamespace(automatic_optimization=True)
    trainer = SimpleNamespace(
        lr_scheduler_configs=[config], lightning_module=module, num_training_batches=10, accumulate_grad_batches=1, is_global_zero=True
    )
    begun = beginnings(trainer)
    optimizer.step()
    scheduler.step()
    now = scheduler.get_last_lr()
    restart_schedulers(trainer, [scheduler], begun, left)
    assert ("starts again" in capsys.readouterr().out) is again
    assert [group["lr"] for group in optimizer.param_groups] == ([1.0] if again else now)


def test_an_epoch_of_batches_that_do_not_fill_their_last_step(capsys):
    """Of 7 batches, 2 a step, the last makes a step of its own: 8 steps are two epochs, in which a schedule of three does not end."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    config = SimpleNamespace(scheduler=LambdaLR(optimizer, lambda epoch: max(0.0, 1 - epoch / 3)), interval="epoch", frequency=1)
    trainer = SimpleNamespace(
        lr_scheduler_configs=[config], lightning_module=SimpleNamespace(automatic_optimization=True), num_training_batches=7,
        accumulate_grad_batches=2, is_global_zero=True,
    )  # fmt: skip
    for left, again in ((8, False), (11, False), (12, True)):
        restart_schedulers(trainer, [config.scheduler], beginnings(trainer), left)
        assert ("starts again" in capsys.readouterr().out) is again, left


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_schedule_that_goes_on_keeps_its_momentum(make):
    """OneCycleLR moves it beside the rate, also where it is only tried."""

    def begun(steps):
        optimizer = make([torch.nn.Parameter(torch.ones(1))], lr=1.0, **({"momentum": 0.9} if make is torch.optim.SGD else {}))
        scheduler = OneCycleLR(optimizer, 1.0, total_steps=40)
        config, module = SimpleNamespace(scheduler=scheduler, interval="step", frequency=1), SimpleNamespace(automatic_optimization=True)
        trainer = SimpleNamespace(
            lr_scheduler_configs=[config], lightning_module=module, num_training_batches=40, accumulate_grad_batches=1, is_global_zero=True
        )
        beginning = beginnings(trainer)
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
        return trainer, scheduler, beginning

    trainer, scheduler, beginning = begun(20)
    restart_schedulers(trainer, [scheduler], beginning, 20)
    ours, theirs = ({**one.optimizer.param_groups[0], "params": None} for one in (scheduler, begun(20)[1]))
    assert ours == theirs
