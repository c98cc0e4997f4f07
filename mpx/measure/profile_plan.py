"""Decide when a profile begins. It must end before the training does, since the throughput leaves its steps out."""

import math

import pytorch_lightning as pl

MIN_BEFORE = 6  # batches before a profile: recording a CUDA graph and compiling are over by then
TIMED = 10  # undisturbed steps
TRACED = 5  # steps that the trace keeps
RECORDED = 2  # plain steps; the second one counts, because cuDNN may search in the first one
PROFILE_STEPS = TIMED + TRACED + 1 + RECORDED  # a trace begins with a step that is not kept
MIN_EPOCH_BATCHES = 2  # a trace lies in one epoch


def may_begin(trainer: pl.Trainer, done: int, seen: int, sampled: int) -> bool:
    """Whether a profile that begins after `done` batches of this epoch can be completed.

    seen: batches since the training began or the model was pruned. sampled: interval in optimizer steps at which numerics sample. If a
    profile fits between two sampled steps, it contains none.
    """
    batches = trainer.num_training_batches
    until_sample = -trainer.global_step % sampled
    if seen < MIN_BEFORE or batches < MIN_EPOCH_BATCHES or math.isinf(batches):
        return False
    if until_sample < PROFILE_STEPS < sampled:
        return False
    traced = steps_to_trace(trainer)
    in_one_epoch = batches - done >= TIMED + traced + 1
    unused = 0 if in_one_epoch else traced  # at most, between the timing and the trace
    return batches_left(trainer, done) >= TIMED + unused + traced + 1 + RECORDED


def steps_to_trace(trainer: pl.Trainer) -> int:
    """At most TRACED, and no more than an epoch has batches beside the first step, which is not kept."""
    return min(TRACED, trainer.num_training_batches - 1)


def batches_left(trainer: pl.Trainer, done: int) -> int:
    """The batches of the whole training that follow `done` batches of this epoch and their optimizer steps."""
    batches, accumulated = trainer.num_training_batches, trainer.accumulate_grad_batches
    left = batches - done
    by_epochs = left + (trainer.max_epochs - trainer.current_epoch - 1) * batches
    if trainer.max_steps == -1:
        return by_epochs
    steps, steps_of_epoch = trainer.max_steps - trainer.global_step, math.ceil(batches / accumulated)
    steps_here = steps_of_epoch - done // accumulated if left else 0
    if steps < steps_here:
        return steps * accumulated - done % accumulated
    epochs, rest = divmod(steps - steps_here, steps_of_epoch)
    return min(by_epochs, left + epochs * batches + rest * accumulated)
