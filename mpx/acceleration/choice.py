"""Choose what a run uses: CUDA graphs, torch.compile, cuDNN's search, channels_last. Each choice comes with
its reason.

`speed=auto` takes what is safe and pays off; the keys of the trainer override it. experiments/speed/README.md
and experiments/cpu_layout have the measurements behind the bounds.
"""

from dataclasses import dataclass, field, replace

from mpx.errors import UserError
from mpx.settings.check import graphs_refused

SEARCH_FROM = 1_000  # optimizer steps; cuDNN's search takes a second or two
# Numbers in filters per pixel of a batch. Up to here channels_last pays on a CPU, where oneDNN then
# rearranges filters, not activations.
FILTERS_PER_PIXEL = 500
NO_CUDA = "no CUDA device"
PLACES = {  # what each data.loader means
    "resident": "data on the device",
    "workers": "batches from the host",
    "device": "images decoded on the GPU",
}


@dataclass(frozen=True)
class Facts:
    """The facts that the choice depends on. A text is a reason against an acceleration; None: there is
    none.
    """

    cuda: bool
    steps: int  # optimizer steps of the whole run
    against_graphs: str | None = None  # a recorded step cannot be replayed
    against_compiling: str | None = None  # torch.compile cannot take this model or mode
    loses_recorded: str | None = None  # a step can be replayed, but that is slower
    loses_compiled: str | None = None  # the model can be compiled, but that is not known to be faster
    against_search: str | None = None  # cuDNN has nothing to search, or must not
    # the model has no convolutions of images, or cannot take the layout
    against_channels_last: str | None = None
    # the layout works, but is not known to be faster, or is inaccurate
    loses_channels_last: str | None = None
    filters: int = 0  # numbers in the filters of all 2-D convolutions
    pixels: int = 0  # of a batch of images


@dataclass(frozen=True)
class Choice:
    cuda_graphs: bool
    compile: str  # off or a mode of torch.compile
    graphs_required: bool  # the user asks for CUDA graphs, so the run fails without them
    benchmark: bool = False  # cuDNN times its convolution algorithms and takes the fastest
    # images and filters are in memory pixel by pixel instead of channel by channel
    channels_last: bool = False
    why: dict[str, str] = field(default_factory=dict)  # the reason for each of the above
    undecided: bool = False  # the first steps are timed, then the others are compiled if that pays
    on_gpu: bool = False
    loader: str | None = None  # one of PLACES; chosen by mpx.data
    # cuda_graphs, compile: why it is not advised, whatever was asked for
    against: dict[str, str] = field(default_factory=dict)

    def with_loader(self, loader: str, why: str) -> "Choice":
        """The same choice with the loader that mpx.data has chosen."""
        return replace(self, loader=loader, why=self.why | {"loader": why})

    def line(self) -> str:
        """What was chosen and why, in one line. CUDA graphs and the data's place are mentioned on a GPU
        only.
        """
        graphs = "CUDA graphs" if self.cuda_graphs else "no CUDA graphs"
        compiled = "not compiled" if self.compile == "off" else f"compiled ({self.compile})"
        compiled += " yet" if self.undecided else ""
        words = {"cuda_graphs": graphs} if self.on_gpu else {}
        words |= {"compile": compiled}
        if self.benchmark or self.why["benchmark"].startswith("trainer.benchmark=true"):
            words["benchmark"] = (
                "cuDNN's algorithms timed" if self.benchmark else ("cuDNN's algorithms not timed")
            )
        words |= {"channels_last": "channels_last"} if self.channels_last else {}
        if self.on_gpu and self.loader is not None:
            words["loader"] = PLACES[self.loader]
        return "speed: " + "; ".join(f"{said} ({self.why[name]})" for name, said in words.items())

    def record(self) -> dict:
        chosen = ("cuda_graphs", "compile", "benchmark", "channels_last", "loader")
        return {name: getattr(self, name) for name in chosen} | {"why": dict(self.why)}


Requested = bool | str  # True, False or auto


def choose(
    speed: str,
    compiling: str,
    graphs: Requested,
    benchmark: Requested,
    channels_last: Requested,
    facts: Facts,
) -> Choice:
    """Choose by the settings and the facts. Raises UserError for a request that cannot be met.

    speed: auto or plain. compiling: auto, off or a mode of torch.compile.
    """
    compiling, why_compile, undecided = _compile(speed, compiling, facts)
    use, why_graphs = _graphs(speed, graphs, facts)
    search, why_search = _search(speed, benchmark, facts)
    layout, why_layout = _channels_last(speed, channels_last, facts)
    why = {
        "cuda_graphs": why_graphs,
        "compile": why_compile,
        "benchmark": why_search,
        "channels_last": why_layout,
    }
    reasons = {"cuda_graphs": facts.against_graphs or facts.loses_recorded}
    reasons |= {"compile": facts.against_compiling or facts.loses_compiled}
    against = {name: reason for name, reason in reasons.items() if reason is not None}
    return Choice(use, compiling, graphs is True, search, layout, why, undecided, facts.cuda, against=against)


def _as_requested(key: str, requested: Requested, speed: str) -> tuple[bool, str] | None:
    """What the user asks for, with the reason. None: the facts decide."""
    if isinstance(requested, bool):
        return requested, f"trainer.{key}={str(requested).lower()}"
    return (False, "speed=plain") if speed == "plain" else None


def _channels_last(speed: str, requested: Requested, facts: Facts) -> tuple[bool, str]:
    if requested is True and facts.against_channels_last is not None:
        raise UserError(
            f"trainer.channels_last=true is not possible: {facts.against_channels_last}. Use "
            "trainer.channels_last=auto."
        )
    if (asked := _as_requested("channels_last", requested, "auto" if facts.cuda else speed)) is not None:
        return asked
    if (reason := facts.against_channels_last or facts.loses_channels_last) is not None:
        return False, reason
    if facts.cuda:
        return True, "cuDNN's Tensor Core and batch norm kernels read it"
    most = FILTERS_PER_PIXEL * facts.pixels
    return facts.filters <= most, (
        f"{facts.filters:,} filter weights, pays up to about {most:,} at this batch size"
    )


def _search(speed: str, requested: Requested, facts: Facts) -> tuple[bool, str]:
    """A request that cannot be met is not an error, because a study may set it for several models, some of
    them without convolutions.
    """
    reason = facts.against_search or (None if facts.cuda else NO_CUDA)
    if requested is True and reason is not None:
        return False, f"trainer.benchmark=true, but {reason}"
    if (asked := _as_requested("benchmark", requested, speed)) is not None:
        return asked
    if reason is not None:
        return False, reason
    return facts.steps >= SEARCH_FROM, f"{facts.steps:,} steps, pays from about {SEARCH_FROM:,}"


def _compile(speed: str, requested: str, facts: Facts) -> tuple[str, str, bool]:
    if requested not in ("auto", "off") and facts.against_compiling is not None:
        raise UserError(
            f"trainer.compile={requested} is not possible: {facts.against_compiling}. Use "
            "trainer.compile=off."
        )
    if requested != "auto":
        return requested, f"trainer.compile={requested}", False
    if speed == "plain":
        return "off", "speed=plain", False
    reason = facts.against_compiling or (facts.loses_compiled if facts.cuda else "on a CPU it rarely pays")
    return "off", reason or "the first steps are timed, to see whether it pays", reason is None


def _graphs(speed: str, requested: Requested, facts: Facts) -> tuple[bool, str]:
    if requested is True and facts.against_graphs is not None:
        raise graphs_refused(facts.against_graphs)
    if (asked := _as_requested("cuda_graphs", requested, speed)) is not None:
        return asked
    reason = facts.against_graphs or facts.loses_recorded
    return (True, "the whole step repeats") if reason is None else (False, reason)
