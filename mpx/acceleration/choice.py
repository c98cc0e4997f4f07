"""CUDA graphs, torch.compile, cuDNN's search and the layout of images: what a run uses of them, and why. `speed=auto` takes what is safe
and pays; each can be set by hand."""

from dataclasses import dataclass, field, replace

from mpx.errors import UserError

# Optimizer steps from which compiling pays. Measured on an H200 with torch 2.11, amp and CUDA graphs (`experiments/speed/run.py
# --sections ways` repeats it): it took 28 s for ResNet-18 (512 of 32²), 27 s for ResNet-50 (256 of 224²) and 8 s for BERT-small (256 of
# 128 tokens), or 1 to 2 s where the same layers had been compiled before, and saved 0.8 of 7.1, 7.1 of 42.0 and 3.9 of 14.2 ms a step. It
# has paid after 36,000, 3,800 and 2,100 steps, or at most 2,800. In between: the other seeds of a study find what the first has compiled.
PAYS_FROM = 10_000
SEARCH_FROM = 1_000  # optimizer steps: trying cuDNN's algorithms takes a second or two
# Numbers in convolution filters, per pixel of a batch, up to which channels_last pays on a CPU. It saves oneDNN the rearranging of
# activations, but that of filters costs more. Measured on an Intel Xeon with torch 2.15 in FP32, one thread, a step's CPU time ÷ that of a
# contiguous one: ResNet-20 on 8×8 0.83 (66 a pixel), on 28×28 0.84 (1), DenseNet-121 on 64×64 0.85 (212), ResNet-18 on 28×28 0.97 (222);
# ResNet-50 on 64×64 1.03 (358), ResNet-18 on 16×16 1.13 (681), on 8×8 1.16 (2,724) and there with 16 images 1.57 (10,897).
FILTERS_PER_PIXEL = 300
NO_CUDA = "no CUDA device"


@dataclass(frozen=True)
class Facts:
    """What the choice depends on. The fields that are texts say what stands in the way, None where nothing does."""

    cuda: bool
    steps: int  # optimizer steps of the whole run
    against_graphs: str | None = None  # the whole step cannot be repeated as it was recorded
    against_compiling: str | None = None  # torch.compile cannot take this model or mode
    loses_recorded: str | None = None  # it can be repeated, but that is slower
    loses_compiled: str | None = None  # it can be compiled, but that is not known to gain
    against_search: str | None = None  # there is nothing for cuDNN to search, or it must not
    against_channels_last: str | None = None  # there is nothing to lay out, or the model cannot take it
    loses_channels_last: str | None = None  # it can be laid out so, but that is not known to gain, or is inaccurate
    filters: int = 0  # numbers in the filters of all 2-D convolutions
    pixels: int = 0  # of a batch of images


@dataclass(frozen=True)
class Choice:
    cuda_graphs: bool
    compile: str  # off or a mode of torch.compile
    by_hand: bool  # the graphs were asked for: without them the run fails
    benchmark: bool = False  # cuDNN times its convolution algorithms and takes the fastest
    channels_last: bool = False  # images and filters lie in memory pixel by pixel instead of channel by channel
    why: dict[str, str] = field(default_factory=dict)  # of each
    on_gpu: bool = False
    loader: str | None = None  # resident or workers; chosen by mpx.data
    against: dict[str, str] = field(default_factory=dict)  # of cuda_graphs and compile: why not, whatever was asked for

    def with_loader(self, loader: str, why: str) -> "Choice":
        """The same choice with the loader that mpx.data has chosen."""
        return replace(self, loader=loader, why=self.why | {"loader": why})

    def line(self) -> str:
        """What was chosen and why; of CUDA graphs and of where the data lie only on a GPU."""
        graphs = "CUDA graphs" if self.cuda_graphs else "no CUDA graphs"
        compiled = "not compiled" if self.compile == "off" else f"compiled ({self.compile})"
        words = {"cuda_graphs": graphs} if self.on_gpu else {}
        words |= {"compile": compiled}
        if self.benchmark or self.why["benchmark"].startswith("trainer.benchmark=true"):
            words["benchmark"] = "cuDNN's algorithms timed" if self.benchmark else "cuDNN's algorithms not timed"
        words |= {"channels_last": "channels_last"} if self.channels_last else {}
        if self.on_gpu and self.loader is not None:
            words["loader"] = "data on the device" if self.loader == "resident" else "batches from the host"
        return "speed: " + "; ".join(f"{said} ({self.why[name]})" for name, said in words.items())

    def record(self) -> dict:
        chosen = ("cuda_graphs", "compile", "benchmark", "channels_last", "loader")
        return {name: getattr(self, name) for name in chosen} | {"why": dict(self.why)}


Wish = bool | str  # True, False or auto


def choose(speed: str, compiling: str, graphs: Wish, benchmark: Wish, channels_last: Wish, facts: Facts) -> Choice:
    """speed: auto or plain. compiling: auto, off or a mode. Raises UserError for what cannot be."""
    compiling, why_compile = _compile(speed, compiling, facts)
    use, why_graphs = _graphs(speed, graphs, compiling, facts)
    search, why_search = _search(speed, benchmark, facts)
    layout, why_layout = _channels_last(speed, channels_last, facts)
    why = {"cuda_graphs": why_graphs, "compile": why_compile, "benchmark": why_search, "channels_last": why_layout}
    against = {"cuda_graphs": _no_graphs(compiling, facts) or facts.loses_recorded}
    against |= {"compile": facts.against_compiling or facts.loses_compiled}
    against = {name: reason for name, reason in against.items() if reason is not None}
    return Choice(use, compiling, graphs is True, search, layout, why, facts.cuda, against=against)


def _channels_last(speed: str, wish: Wish, facts: Facts) -> tuple[bool, str]:
    if wish is False:
        return False, "trainer.channels_last=false"
    if wish is True:
        if facts.against_channels_last is not None:
            raise UserError(f"trainer.channels_last=true is not possible: {facts.against_channels_last}. Use trainer.channels_last=auto.")
        return True, "trainer.channels_last=true"
    if not facts.cuda and speed == "plain":
        return False, "speed=plain"
    if (reason := facts.against_channels_last or facts.loses_channels_last) is not None:
        return False, reason
    # On a GPU Tensor Cores are fed in this layout; in the other one cuDNN often takes FP32 kernels for TF32. In FP32 convolutions alone are
    # some 9 % slower in it, but batch norm takes 0.22 instead of 0.59 ms (256 of 64×32², H200): ResNet-18 trains at 9,534 samples/s, in the
    # other layout at 7,430; compiled at 9,768 and 9,710.
    if facts.cuda:
        return True, "cuDNN's Tensor Core and batch norm kernels read it"
    most = FILTERS_PER_PIXEL * facts.pixels
    return facts.filters <= most, f"{facts.filters:,} numbers in filters, pays up to about {most:,} at this batch size"


def _search(speed: str, wish: Wish, facts: Facts) -> tuple[bool, str]:
    """A wish that cannot be met is no mistake: a study over several models has it for all of them, also for those without convolutions."""
    reason = facts.against_search or (None if facts.cuda else NO_CUDA)
    if wish is True:
        return reason is None, "trainer.benchmark=true" + ("" if reason is None else f", but {reason}")
    if wish is False:
        return False, "trainer.benchmark=false"
    if speed == "plain":
        return False, "speed=plain"
    if reason is not None:
        return False, reason
    pays = facts.steps >= SEARCH_FROM
    return pays, f"{facts.steps:,} steps, pays from about {SEARCH_FROM:,}"


def _compile(speed: str, wish: str, facts: Facts) -> tuple[str, str]:
    if wish == "off":
        return "off", "trainer.compile=off"
    if wish != "auto":
        if facts.against_compiling is not None:
            raise UserError(f"trainer.compile={wish} is not possible: {facts.against_compiling}. Use trainer.compile=off.")
        return wish, f"trainer.compile={wish}"
    if speed == "plain":
        return "off", "speed=plain"
    reason = facts.against_compiling or (facts.loses_compiled if facts.cuda else "on a CPU it rarely pays")
    if reason is None and facts.steps < PAYS_FROM:
        reason = f"pays from about {PAYS_FROM:,} steps, this run has {facts.steps:,}"
    return ("default", f"{facts.steps:,} steps, pays from about {PAYS_FROM:,}") if reason is None else ("off", reason)


def _no_graphs(compiling: str, facts: Facts) -> str | None:
    """Why CUDA graphs are not possible."""
    own = "trainer.compile=reduce-overhead makes its own" if compiling == "reduce-overhead" else None
    return facts.against_graphs or own


def _graphs(speed: str, wish: Wish, compiling: str, facts: Facts) -> tuple[bool, str]:
    reason = _no_graphs(compiling, facts)
    if wish is True:
        if reason is not None:
            raise UserError(f"trainer.cuda_graphs=true is not possible: {reason}. Use trainer.cuda_graphs=auto.")
        return True, "trainer.cuda_graphs=true"
    if wish is False:
        return False, "trainer.cuda_graphs=false"
    if speed == "plain":
        return False, "speed=plain"
    reason = reason or facts.loses_recorded
    return (True, "the whole step repeats") if reason is None else (False, reason)
