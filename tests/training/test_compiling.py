"""When are steps compiled, and what does a whole run then take? A made clock times runs whose steps take as long as they are told to."""

import math
from types import SimpleNamespace

import pytest

from mpx.acceleration.choice import Choice
from mpx.acceleration.payoff import Notebook, pays, typical
from mpx.training import compiling
from mpx.training.compiling import CompileIfItPays

RESNET50, RESNET18, BERT = (True, 53.8, 37.3, 28.0), (True, 8.04, 5.94, 28.0), (False, 14.2, 10.3, 8.0)  # experiments/speed, H200, BF16


class Clock:
    """In place of mpx.measure.windows.Clock."""

    now = 0.0

    def synchronize(self):
        pass

    def mark(self):
        return self.now

    def between(self, first, second):
        return 1e3 * (second - first)


class Steps:
    """An Acceleration whose steps take `plain_s`, and `compiled_s` once compiled, which takes `compile_s` within the next step."""

    settled = 6

    def __init__(self, plain_s, compiled_s, compile_s):
        self.plain_s, self.compiled_s, self.due_s = plain_s, compiled_s, compile_s
        self.compiled, self.now_compiled = SimpleNamespace(given_up=None), False

    def compile(self, step):
        self.now_compiled = True

    def step(self):
        if not self.now_compiled:
            return self.plain_s
        due, self.due_s = self.due_s, 0.0
        return due + self.compiled_s


@pytest.fixture
def train(monkeypatch, tmp_path):
    """train(model, batches) -> (seconds of the run, of the better choice by hand, what the notebook then says of this step)."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiling, "say", lambda line: None)

    def train(model, batches, *, epoch=200, validation_s=0.0, between_s=0.0, accumulated=1, done=0, shared=False):
        convolutions, plain_ms, compiled_ms, compile_s = model
        clock, steps, notebook = Clock(), Steps(plain_ms / 1e3, compiled_ms / 1e3, compile_s), Notebook("this step")
        monkeypatch.setattr(compiling, "Clock", lambda device: clock)
        choice = Choice(True, "off", False, undecided=typical(convolutions, "bf16"), why={"compile": ""})
        callback = CompileIfItPays(choice, steps, notebook, lambda: shared, [])
        trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=None), local_rank=0, num_training_batches=epoch)
        trainer.accumulate_grad_batches, trainer.max_epochs, trainer.max_steps = accumulated, batches // epoch, -1
        callback.on_fit_start(trainer, None)
        beside_s = 0.0
        for batch in range(done, batches):
            trainer.current_epoch, number = divmod(batch, epoch)
            trainer.global_step = trainer.current_epoch * math.ceil(epoch / accumulated) + (number + 1) // accumulated
            clock.now += between_s
            callback.on_train_batch_start(trainer, None, None, number)
            clock.now += steps.step()
            callback.on_train_batch_end(trainer, None, None, None, number)
            clock.now += (pause := validation_s if number + 1 == epoch else 0.0)
            beside_s += between_s + pause
        by_hand = beside_s + min((batches - done) * plain_ms / 1e3, (batches - done) * compiled_ms / 1e3 + compile_s)
        return clock.now, by_hand, notebook.read(typical(convolutions, "bf16"))

    return train


@pytest.mark.parametrize("model", [RESNET50, RESNET18, BERT])
@pytest.mark.parametrize(
    "how",
    [
        {"batches": 200},
        {"batches": 3_000},
        {"batches": 30_000},
        {"batches": 6_000, "epoch": 1, "validation_s": 1.0},
        {"batches": 6_000, "epoch": 3, "validation_s": 5.0},
        {"batches": 6_000, "epoch": 12, "validation_s": 60.0},
        {"batches": 30_000, "done": 29_500},
        {"batches": 30_000, "done": 15_111},
        {"batches": 8_000, "accumulated": 4},
        {"batches": 8_001, "epoch": 21, "accumulated": 8},
    ],
    ids=lambda how: " ".join(f"{name}={value}" for name, value in how.items()),
)
def test_a_run_takes_hardly_longer_than_by_the_better_choice(train, model, how):
    """By at most 5 % or 3 s, as for experiments/auto. What validation takes is no argument for either choice."""
    took, by_hand, _ = train(model, **how)
    assert took <= max(1.05 * by_hand, by_hand + 3)


@pytest.mark.parametrize("epoch", [1, 3, 200])
def test_a_validation_is_no_part_of_compiling(train, epoch):
    """Six steps lie between the decision and the first that is timed, so short epochs end among them."""
    *_, known = train(RESNET50, 6_000, epoch=epoch, validation_s=60.0)
    assert known.compile_s == pytest.approx(0.2 * (28.0 + 6 * 0.0373))


def test_later_runs_decide_by_steps_with_their_gaps(train):
    """What lies between steps remains when they are compiled, and so takes nothing from a saving that was measured."""
    *_, known = train(RESNET50, 6_000, between_s=0.01)
    assert known.step_ms == pytest.approx(63.8)
    assert known.saves * known.step_ms == pytest.approx(53.8 - 37.3)
    assert pays(known, 400)[0]


def test_steps_beside_other_work_are_not_kept_for_later_runs(train):
    for batches in (200, 6_000):
        *_, known = train(RESNET50, batches, shared=True)
        assert known == typical(True, "bf16")
