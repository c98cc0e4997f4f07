"""How fast does mpx train, beside loops tuned by hand and other trainers? Same model, batch, precision, and
data on the device, in turn.

$ python experiments/speed/run.py  # everything, for as long as --seconds allows
$ python experiments/speed/run.py --sections rivals --precisions amp         # a part of it
$ python experiments/speed/run.py --sections ways --models resnet18 --ways graph,both,searched,autotune
$ python experiments/speed/run.py --tiny  # a trial on any machine, means nothing

Prints a line per measurement and writes results.csv into $OUT, or here. Sections: rivals (amp and amp_bf16
against the hand-tuned loop, the plain loop, Lightning, transformers, timm), whole (a run with
evaluation, logging and checkpoints against its own steps), ways (what mpx can do, when asked for).
experiments/costs measures masks and numerics.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
from collecting import Arguments, experiment, some_of  # noqa: E402
from setups import MODELS, WAYS, Mpx, Setup, Whole, device, setup  # noqa: E402

from mpx.measure.exclusive import ExclusivityChecks  # noqa: E402
from mpx.precision.switches import keep_apart  # noqa: E402

SECTIONS = ("rivals", "whole")
ORDER = ("resnet18", "lstm", "bert_small", "resnet50")  # those that take longest last
HALVES, FULL_WIDTH = ("amp", "amp_bf16"), ("fp32", "tf32")
COLUMNS = ("section", "model", "precision", "contender", "round", "samples_per_s", "batch", "steps", "wall_s")
COLUMNS += ("exclusive", "rejected", "note")


@dataclass(frozen=True)
class Comparison:
    """Contenders take turns. make: name -> makes it, when its first turn comes."""

    section: str
    setup: Setup
    make: dict[str, Callable[[], Any]]
    rounds: int = 2


def plan(args: argparse.Namespace) -> Iterator[Comparison]:
    for section in args.sections:
        precisions = [name for name in PRECISIONS[section] if name in args.precisions]
        for precision in precisions:
            for model in (name for name in args.models if name in ONLY.get(section, MODELS)):
                here = setup(model, precision, tiny=args.tiny)
                # the first one loads libraries
                rounds = args.rounds + 1 if section == "whole" and not args.tiny else args.rounds
                make = MAKERS[section](here, args).items()
                wanted = {name: it for name, it in make if name in (args.contenders or (name,))}
                yield Comparison(section, here, wanted, rounds)


def rivals(here: Setup, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    from hand import Loop
    from trainers import Lightning, Transformers

    loops, trainers = ["hand", "loop"], {"lightning": Lightning}
    if here.model == "bert_small":
        loops, trainers = [*loops, "hand, types looked up"], trainers | {"transformers": Transformers}
    if here.model == "resnet50":
        loops = [*loops, "timm"]
    found = {"mpx": lambda: Mpx(here, "auto")} | {name: lambda name=name: Loop(here, name) for name in loops}
    for name, trainer in trainers.items():
        found[name] = lambda trainer=trainer: trainer(here, tuned=False)
        found[f"{name}, tuned"] = lambda trainer=trainer: trainer(here, tuned=True)
    if here.model == "bert_small":
        found["mpx, pool=first"] = lambda: Mpx(here, "auto", ["model.pool=first"])
    return found


def whole(here: Setup, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    return {"whole run": lambda: Whole(here, args.data_root)}


def ways(here: Setup, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    return {f"mpx, {way}": lambda way=way: Mpx(here, way) for way in args.ways}


MAKERS = {"rivals": rivals, "whole": whole, "ways": ways}
PRECISIONS = {"rivals": HALVES, "whole": ("amp",), "ways": HALVES + FULL_WIDTH}
ONLY = {"whole": ("resnet18",)}


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    until = time.perf_counter() + args.seconds
    for comparison in plan(args):
        yield from turns(comparison, until)
        tidy(forget=True)


def turns(comparison: Comparison, until: float) -> Iterator[dict[str, Any]]:
    """One row per contender and round; every other round in the reverse order."""
    here = comparison.setup
    # Lightning's and the loops' compiled code, as mpx keeps its own
    keep_apart(contenders=here.precision)
    names, ready, failed = list(comparison.make), {}, set()
    for number in range(comparison.rounds):
        for name in names if number % 2 == 0 else reversed(names):
            if name in failed:
                continue
            if time.perf_counter() > until:
                print(
                    f"out of time before {comparison.section} {here.model} {here.precision} {name}",
                    flush=True,
                )
                return
            # each way compiles, and the compiler keeps eight of a function
            tidy(forget=comparison.section == "ways")
            row = {"section": comparison.section, "model": here.model, "precision": here.precision}
            row |= {"contender": name, "round": number, "batch": here.batch}
            start = time.perf_counter()
            try:
                contender = ready.get(name) or ready.setdefault(name, comparison.make[name]())
                others = ExclusivityChecks(device())
                others.look()
                row |= {"samples_per_s": contender.samples_per_s(), "note": contender.note}
                exclusive, reason = others.verdict()
                row |= {"exclusive": exclusive, "rejected": reason if exclusive is False else ""}
                row["steps"] = getattr(contender, "steps", here.steps)
            except Exception as error:  # the others are still wanted
                failed.add(name)
                row["note"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield row | {"wall_s": round(time.perf_counter() - start, 1)}


def tidy(*, forget: bool) -> None:
    """Free what nobody holds any more. forget: also all that was compiled."""
    import torch

    if forget:
        torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def main() -> None:
    parser = Arguments()
    names = {"models": ORDER, "precisions": HALVES + FULL_WIDTH, "ways": tuple(WAYS)}
    parser.add_argument("--sections", type=some_of(MAKERS), default=list(SECTIONS), help=",".join(MAKERS))
    for name, allowed in names.items():
        parser.add_argument(f"--{name}", type=some_of(allowed), default=list(allowed), help=",".join(allowed))
    several = {"type": lambda text: text.split(","), "help": "only these, as mpx,hand; else all of a section"}
    parser.add_argument("--contenders", **several)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=500, help="begin no measurement after so many")
    root = os.environ.get("MPX_DATA")
    parser.add_argument("--data-root", default=root, help="holds FashionMNIST/raw, for whole runs")
    parser.add_argument("--tiny", action="store_true", help="tiny models, whose figures mean nothing")
    experiment(HERE, COLUMNS, measure, parser=parser)


if __name__ == "__main__":
    main()
