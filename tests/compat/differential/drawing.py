"""Draws programs: rounds of zeroing, backward passes, clipping and steps, with everything in between that scripts do."""

import math
import random

from programs import LEVELS, MODELS, OPTIMIZERS, Add, Checkpoint, Clip, Evaluate, Pass, Program, Rescale, Step, Zero


def draw(seed: int) -> Program:
    """The program of that number, always the same one."""
    rng = random.Random(seed)
    level = rng.choice(["O0", "O1", "O1", "O1", "O2", "O2", "O2", "O3"])
    owned, optimizers = 0, []
    for _ in range(rng.choice([1, 1, 2])):
        count = rng.choice([1, 1, 2])
        optimizers.append((rng.choice(list(OPTIMIZERS)), tuple(range(owned, owned + count))))
        owned += count
    program = Program(
        seed,
        level,
        {name: value for name, values in LEVELS[level].items() if (value := rng.choice(values)) is not None},
        tuple(rng.choice(list(MODELS)) for _ in range(owned + 1)),  # the last one is added by add_param_group, if at all
        tuple(optimizers),
        num_losses=rng.choice([1, 1, 2, 3]),
        interval=rng.choice([2, 3, 5, 2000]),
        limits=rng.choice([(None, 2.0**24), (None, 2.0**24), (2.0**15, 2.0**17)]),
    )
    drawer = Drawer(rng, program)
    for _ in range(rng.randint(3, 6)):
        drawer.round()
    return Program(**vars(program) | {"events": tuple(drawer.events)})


class Drawer:
    def __init__(self, rng: random.Random, program: Program):
        self.rng, self.program, self.events = rng, program, []
        self.spare = len(program.models) - 1
        self.owner = {model: i for i, (_, models) in enumerate(program.optimizers) for model in models}

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def round(self) -> None:
        self.zero()
        for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
            self.passes()
        for optimizer in range(len(self.program.optimizers)):
            if self.chance(0.2):
                self.events.append(Clip(optimizer))
            if self.chance(0.9):
                closure = self.one((optimizer,), optimizers=(optimizer,)) if self.chance(0.1) else None
                self.events.append(Step(optimizer, closure))
        self.between()

    def zero(self) -> None:
        how = self.rng.choice(["optimizer", "optimizer", "model", "none", "leave"])
        if how == "leave":
            return
        for number in range(len(self.program.optimizers if how == "optimizer" else self.program.models)):
            self.events.append(Zero(how, number, None if how == "none" else self.rng.choice([None, None, None, True, False])))

    def one(self, reach: tuple[int, ...] = (), **given: object) -> Pass:
        """A pass with the loss of models of all optimizers in `reach`, and maybe of more."""
        models = {self.rng.choice([m for m, owner in self.owner.items() if owner == optimizer]) for optimizer in reach}
        for _ in range(self.rng.choice([0, 0, 1]) if reach else self.rng.choice([1, 1, 2])):
            models.add(self.rng.choice(list(self.owner)))
        optimizers = tuple(sorted({self.owner[model] for model in models}))
        if self.chance(0.25):  # by the way, as a discriminator's loss reaches the generator
            models.add(self.rng.choice([*self.owner, self.spare, self.spare]))
        drawn = {
            "loss_id": self.rng.randrange(self.program.num_losses),
            "models": tuple(sorted(models)),
            "optimizers": optimizers,
            "factor": self.rng.choice([1.0] * 8 + [2.0**12, math.inf]),
            "poisoned": self.rng.randrange(8) if self.chance(0.07) else None,
            "whole": self.chance(0.7),
        }
        return Pass(**drawn | given)

    def passes(self) -> None:
        """One pass, or some whose gradients stay scaled until the last."""
        last = self.one()
        if self.chance(0.25):
            for _ in range(self.rng.choice([1, 2])):
                self.events.append(self.one(last.optimizers, loss_id=last.loss_id, optimizers=last.optimizers, delay=True))
                if self.chance(0.15):
                    self.zero()
        self.events.append(last)

    def between(self) -> None:
        if self.chance(0.15):
            self.events.append(Evaluate(self.rng.choice(list(self.owner))))
        if self.chance(0.1):
            self.events.append(Rescale(self.rng.randrange(self.program.num_losses), 2.0 ** self.rng.randint(8, 16)))
        if self.spare not in self.owner and self.chance(0.4):
            self.owner[self.spare] = self.rng.randrange(len(self.program.optimizers))
            self.events.append(Add(self.owner[self.spare], self.spare))
        if self.chance(0.15):
            self.events.append(Checkpoint(self.chance(0.5)))
