"""Judge from the skipped steps whether training has diverged, and advise what to try."""

from mpx.precision.scaling import LossScale

FORMAT = "or a format with FP32's range, precision=amp_bf16."
REMEDY = f"a lower optimizer.lr, a longer schedule.warmup, trainer.gradient_clip_val=1.0, {FORMAT}"
THEIRS = f"a lower learning rate, a longer warm-up, clipped gradients, {FORMAT}"  # for a module that brings its own optimizers
CAUSE = "because gradients were infinite or NaN"


def trouble(scale: LossScale, steps: int, max_skips: int | None, own: bool) -> str | None:
    """One line; None if nothing is wrong. steps: of the optimizer, with the skipped ones. max_skips: this many in a row mean divergence.

    own: of a module of the user's own.
    """
    if int(scale.at_floor):
        return (
            "gradients are infinite or NaN although the loss scale has fallen to its floor, "
            f"precision.loss_scale.floor={scale.floor:g} ({int(scale.skipped)} of {steps} steps skipped). {_remedy(scale, steps, own)}"
        )
    if max_skips is not None and (run := int(scale.most_in_a_row)) >= max_skips:
        return (
            f"{run} optimizer steps in a row were skipped {CAUSE} (loss scale {scale.scale.item():g}, "
            f"precision.loss_scale.max_skips={max_skips}). {_remedy(scale, steps, own)}"
        )
    return None


def idle(scale: LossScale, steps: int, earlier: tuple[int, int], own: bool) -> str | None:
    """One line if all steps were skipped, of the run or of this process's part. earlier: steps, and skipped ones, before that part.

    A part of a single step may skip it, as any step after the scale was raised.
    """
    skipped, here = int(scale.skipped), steps - earlier[0]
    if steps == 0 or (skipped < steps and (here < 2 or skipped - earlier[1] < here)):
        return None
    return f"all {steps if skipped == steps else here} optimizer steps were skipped {CAUSE}. {_remedy(scale, steps, own)}"


def _remedy(scale: LossScale, steps: int, own: bool) -> str:
    """What to try. First comes a scale that may be at fault, because it is fixed, at its floor or still falling."""
    key, at_floor, tries = "precision.loss_scale", int(scale.at_floor), THEIRS if own else REMEDY
    if not scale.dynamic and scale.initial > 1:
        first = f"The scale is fixed: lower {key}.initial, or set {key}.dynamic=true"
    elif scale.dynamic and scale.floor > 1 and at_floor:
        first = f"Lower {key}.floor"
    elif scale.dynamic and steps == int(scale.skipped) and not at_floor:
        first = f"No step has been taken yet: lower {key}.initial, or raise {key}.max_skips"
    else:
        return f"Try {tries}"
    return f"{first}; else try {tries}"
