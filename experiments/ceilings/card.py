"""Generate README.md from the tables of `python -m mpx.bench` in this folder.

$ for what in copy gemm blas conv lstm attention triton formats; do python -m mpx.bench what=$what output_dir=outputs; done
$ python experiments/ceilings/card.py outputs/bench/*.json    # takes these tables, and writes README.md
$ python experiments/ceilings/card.py                         # README.md from the committed tables
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import collecting  # noqa: E402
from collecting import ORIGIN, Arguments, markdown, origin_of, write  # noqa: E402

TABLES = ("copy", "gemm", "blas", "conv", "lstm", "attention", "triton", "formats")
NARROW = ("fp16", "bf16", "fp8_e4m3", "int8")
CONV_FORMATS = ("fp32", "tf32", "fp16", "bf16")
CARD = """# What can this GPU do?

**Question.** How fast are copies, matrix products (dense and 2:4), convolutions, LSTMs and attention in each format, independent of any
model? MFU and "of the limit" refer to these ceilings.

**Setup.** {setup}. Random
operands. Each kernel's result was checked against float64 before it was timed. Rates are in TFLOP/s (int8: TOP/s). A 2:4 product counts the
operations of the dense product.

**Command.** `python -m mpx.bench what=copy|gemm|blas|conv|lstm|attention|triton|formats`, then
`python experiments/ceilings/card.py outputs/bench/*.json`

## Copies and square products

{copies}

{formats}

## 2:4 against dense, at BERT's linear layers

Speed-up of 2:4 over dense, both in a CUDA graph. cuSPARSELt searched for its fastest algorithm.

{sparse}

## Convolutions, channels_last, 128 images

{convolutions}

{plans}

## LSTM, two layers, 256×128 tokens, forward and backward, in a CUDA graph

{lstm}

## Attention, 16 heads of 64, 64×512 tokens, forward / backward

{attention}

## 2:4 masks of a weight of 8192×8192

{masks}

## What we learnt

{learnt}

**Trade-off and limits.** One GPU for each table, one version of each library. Every eager call of a 2:4 product plans it again (0.3 ms
here), so sparsity pays inside CUDA graphs or a serving engine, but not in eager mode. `conv.csv` is older, since the machine of the others
has no nvidia-cudnn-frontend, which lists cuDNN's plans.

**Attribution.** Vendor peaks: NVIDIA's datasheets (mpx/measure/peaks.py has the source of each figure). Kernels: cuBLAS, cuSPARSELt,
cuDNN, PyTorch, Triton.
"""


def read(what: str) -> list[dict[str, str]]:
    return collecting.read(HERE / f"{what}.csv")


def matches(row: dict[str, str], **wanted: str) -> bool:
    return all(row[key] == value for key, value in wanted.items())


def one(among: list[dict[str, str]], **wanted: str) -> float | None:
    """The rate of the row with these values; None if it was not measured."""
    found = [row for row in among if matches(row, **wanted)]
    return float(found[0]["tflops_per_s"]) if found and found[0]["tflops_per_s"] else None


def shown(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}"


def take(file: Path) -> None:
    """Write the table of a file of mpx.bench, without what it measured on the CPU beside the GPU."""
    found = json.loads(file.read_text())
    of_gpu = (row for row in found["rows"] if row.get("device") != "cpu")
    rows = [row | origin_of(found["environment"]) | {"exclusive": found["exclusive"]} for row in of_gpu]
    write(HERE / f"{file.stem}.csv", [*found["rows"][0], "exclusive", *ORIGIN], rows)


def setup() -> str:
    """Where the tables were measured: those without an origin of their own as environment.json says."""
    about = json.loads((HERE / "environment.json").read_text())
    older = f"{', '.join(about['device'])}, {alone(about['exclusive'])}, driver {about['driver']}, torch {about['torch']}"
    tables = defaultdict(list)
    for name in TABLES:
        row = read(name)[0]
        origin = "{device}, {0}, driver {driver}, torch {torch}, commit {1}"
        own = "commit" in row
        tables[origin.format(alone(row["exclusive"] == "True"), row["commit"][:12], **row) if own else older].append(name)
    return ". ".join(f"{', '.join(f'`{name}.csv`' for name in names)}: {origin}" for origin, names in tables.items())


def alone(exclusive: bool) -> str:
    return "alone on the device" if exclusive else "beside other programs"


def copies() -> str:
    largest = max(read("copy"), key=lambda row: float(row["mib"]))
    rate, peak = float(largest["gb_per_s"]), float(largest["peak_gb_per_s"])
    return f"{float(largest['mib']):,.0f} MiB copied within the device at {rate:,.0f} GB/s, {rate / peak:.0%} of the vendor's {peak:,.0f}."


def formats() -> str:
    rows = []
    for row in read("formats"):
        rate, peak = (float(row[key]) if row[key] else None for key in ("tflops_per_s", "peak_tflops_per_s"))
        share = f"{rate / peak:.0%}" if rate and peak else "–"
        rows.append([row["format"], row["size"] or "–", shown(rate), shown(peak), share])
    return markdown(["format", "size", "measured", "vendor's peak", "of peak"], rows)


def sparse(gemm: list[dict[str, str]]) -> tuple[str, dict[str, list[float]]]:
    linear = [row for row in gemm if row["shape"] == "linear"]
    shapes = list(dict.fromkeys((row["rows"], row["columns"], row["inner"]) for row in linear))
    lines, gains = [], {fmt: [] for fmt in NARROW}
    for shape in shapes:
        where = dict(zip(("rows", "columns", "inner"), shape, strict=True))
        cells = []
        for fmt in NARROW:
            pruned, dense = (one(linear, **where, format=fmt, pattern=pattern, how="graph") for pattern in ("2of4", "dense"))
            cells.append(f"{pruned / dense:.2f}" if pruned and dense else "–")
            if pruned and dense and int(shape[0]) >= 32768:
                gains[fmt].append(pruned / dense)
        lines.append(["×".join(shape), *cells])
    return markdown(["tokens × out × in", *NARROW], lines), gains


def convolutions() -> str:
    found = [row for row in read("conv") if row["layout"] == "channels_last"]
    lines = []
    for layer in dict.fromkeys(row["layer"] for row in found):
        for direction in dict.fromkeys(row["direction"] for row in found):
            here = {"layer": layer, "direction": direction}
            rates = [
                [one(found, **here, format=fmt, algorithm=algorithm) for algorithm in ("heuristic", "autotuned")] for fmt in CONV_FORMATS
            ]
            lines.append([layer, direction, *(" → ".join(map(shown, pair)) for pair in rates)])
    return "cuDNN's heuristic choice → its choice after timing the algorithms.\n\n" + markdown(["layer", "direction", *CONV_FORMATS], lines)


def over_chosen() -> dict[tuple[str, str], dict[str, tuple[float | None, float | None]]]:
    """(layer, direction) -> format -> speed of cuDNN's fastest plan, and of im2col with a matrix product, over PyTorch's timed choice."""
    found, ratios = read("conv"), defaultdict(dict)
    for layer, direction, fmt in dict.fromkeys((row["layer"], row["direction"], row["format"]) for row in found):
        here = {"layer": layer, "direction": direction, "format": fmt}
        chosen = one(found, **here, layout="channels_last", algorithm="autotuned")
        tried = [row["tflops_per_s"] for row in found if row["algorithm"].startswith("engine") and matches(row, **here)]
        rivals = (max(map(float, filter(None, tried)), default=None), one(found, **here, layout="NCHW", algorithm="im2col + GEMM"))
        ratios[layer, direction][fmt] = tuple(rate / chosen if rate and chosen else None for rate in rivals)
    return ratios


def plans() -> str:
    tried = sum(row["algorithm"].startswith("engine") for row in read("conv"))
    lines = [
        [*where, *(" / ".join("–" if ratio is None else f"{ratio:.2f}" for ratio in of_each[fmt]) for fmt in CONV_FORMATS)]
        for where, of_each in over_chosen().items()
    ]
    return (
        f"Speed of cuDNN's fastest plan ({tried:,} plans timed through nvidia-cudnn-frontend) / speed of im2col + GEMM on NCHW, "
        "both relative to PyTorch's timed choice.\n\n" + markdown(["layer", "direction", *CONV_FORMATS], lines)
    )


def grid(rows: list[dict[str, str]], key: str, header: str, **wanted: str) -> str:
    columns = list(dict.fromkeys(row["format"] for row in rows))
    places = dict.fromkeys(row[key] for row in rows)
    lines = [[place, *(shown(one(rows, **wanted, **{key: place}, format=fmt)) for fmt in columns)] for place in places]
    return markdown([header, *columns], lines)


def attention() -> str:
    found = [row for row in read("attention") if row["length"] == "512"]
    kernels, lines = ("flash", "efficient", "cudnn", "math"), []
    for mask in dict.fromkeys(row["mask"] for row in found):
        for fmt in dict.fromkeys(row["format"] for row in found):
            rates = [[one(found, mask=mask, format=fmt, kernel=k, direction=d) for d in ("forward", "backward")] for k in kernels]
            lines.append([mask, fmt, *(" / ".join(map(shown, pair)) if any(pair) else "–" for pair in rates)])
    return markdown(["mask", "format", *kernels], lines)


def masks() -> str:
    found = [row for row in read("triton") if row["size"] == "8192" and row["compressed"] == "False"]
    lines = [[row["format"], row["way"], f"{float(row['gb_per_s']):,.0f}"] for row in found]
    return markdown(["format", "way", "GB/s"], lines)


def learnt(gains: dict[str, list[float]]) -> str:
    spans = ", ".join(f"{fmt} {min(found):.2f} to {max(found):.2f}" for fmt, found in gains.items())
    return (
        f"- With 32,768 tokens, the speed-up of 2:4 over dense is: {spans}. With 512 tokens 2:4 is slower, except in int8.\n"
        f"- In 16 bits, cuDNN's attention kernel is {attention_gain()} times as fast as the next fastest.\n"
        f"- Timing cuDNN's algorithms makes single convolutions {convolution_gain()} times as fast, so its heuristic is mostly right.\n"
        f"  No plan is more than {plan_gain():.2f} times as fast as PyTorch's timed choice, except for 16-bit 1×1 convolutions. These\n"
        "  are unsteady: two measurements of the same choice differed by up to 1.7.\n"
        "- FP32 convolutions above FP32's peak still have FP32's accuracy (`relative_error` in conv.csv). There cuDNN does not compute\n"
        "  the direct sum, whose operations are counted."
    )


def attention_gain() -> str:
    """Speed-up of cuDNN's kernel over the best other kernel, in 16 bits."""
    rows = [row for row in read("attention") if row["format"] in ("fp16", "bf16")]
    alike = by(rows, "kernel", ("length", "direction", "mask", "format"))
    return span([rates.pop("cudnn") / max(rates.values()) for rates in alike])


def convolution_gain() -> str:
    """Speed-up of cuDNN's timed choice over its heuristic choice."""
    rows = [row for row in read("conv") if row["algorithm"] in ("heuristic", "autotuned")]
    return span([rates["autotuned"] / rates["heuristic"] for rates in by(rows, "algorithm", ("layer", "direction", "layout", "format"))])


def plan_gain() -> float:
    """Largest speed-up of cuDNN's fastest plan over PyTorch's timed choice, without 16-bit 1×1 convolutions."""
    gains = [(layer, fmt, best) for (layer, _), of_each in over_chosen().items() for fmt, (best, _) in of_each.items() if best]
    return max((best for layer, fmt, best in gains if not (layer.startswith("1×1") and fmt in ("fp16", "bf16"))), default=1.0)


def by(rows: list[dict[str, str]], name: str, same: tuple[str, ...]) -> list[dict[str, float]]:
    """Rates by the value of column `name`, for each set of rows that agree in the columns `same`."""
    alike: dict[tuple, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["tflops_per_s"]:
            alike[tuple(row[key] for key in same)][row[name]] = float(row["tflops_per_s"])
    return list(alike.values())


def span(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f} (median {median(ratios):.2f})"


def card() -> str:
    pruned, gains = sparse(read("gemm"))
    lstm = grid([row for row in read("lstm") if row["direction"] == "forward + backward"], "hidden", "units")
    return CARD.format(
        setup=setup(), copies=copies(), formats=formats(), sparse=pruned, convolutions=convolutions(), plans=plans(), lstm=lstm,
        attention=attention(), masks=masks(), learnt=learnt(gains),
    )  # fmt: skip


if __name__ == "__main__":
    parser = Arguments()
    parser.add_argument("tables", type=Path, nargs="*")
    for file in parser.parse_args().tables:
        take(file)
    (HERE / "README.md").write_text(card())
