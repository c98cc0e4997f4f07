"""What the experiments' scripts share: measurements into results.csv with what they come from, and tables into
the marked parts of a card.
"""

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from queue import Queue
from typing import Any, NoReturn

# the last columns of every table: what was measured, when and where
ORIGIN = ("commit", "time", "host", "device", "driver", "torch")


class Arguments(argparse.ArgumentParser):
    """The command line of the script that was started: --help prints its docstring, and a mistake is one
    line.
    """

    def __init__(self) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(description=sys.modules["__main__"].__doc__, formatter_class=raw, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message.rstrip('.')}. --help lists what is allowed.\n")


def some_of(allowed: Iterable[Any], separator: str = ",") -> Callable[[str], list[Any]]:
    """The type of an option that takes several of `allowed`, as a,b, or with another separator."""
    words = {str(value): value for value in allowed}

    def taken(text: str) -> list[Any]:
        if unknown := set(text.split(separator)) - set(words):
            raise argparse.ArgumentTypeError(f"{min(unknown)} is not one of {f'{separator} '.join(words)}")
        return [words[word] for word in text.split(separator)]

    return taken


def origin_of(environment: dict[str, Any]) -> dict[str, str]:
    """The ORIGIN of a run, by the `environment` of its record. Of the host it has the processor's name, and
    what tells hosts apart.
    """
    commit = (environment["git"] or "") + (" with changes" if environment["git_dirty"] else "")
    device, driver = " + ".join(dict.fromkeys(environment["device"] or ["CPU"])), environment["driver"] or ""
    host = " #".join(filter(None, (environment["cpu"], environment.get("host"))))
    more = {"time": environment["started_at"], "host": host}
    return {"commit": commit} | more | {"device": device, "driver": driver, "torch": environment["torch"]}


def origin() -> dict[str, str]:
    """The ORIGIN of what this process measures."""
    from mpx.measure.environment import environment

    return origin_of(environment()) | {"time": now()}


def each_on_its_own(
    run: Callable[[Any, dict[str, str]], Any], tasks: Iterable[Any], gpus: int = 1
) -> Iterator[Any]:
    """What run(task, environment) returns for each task. The environment is that of a process which has so many
    GPUs for itself, so as many tasks run at once as there are GPUs for; one without a GPU.
    """
    import torch

    count, free = torch.cuda.device_count(), Queue()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    for first in range(0, count - gpus + 1, gpus):
        free.put({"CUDA_VISIBLE_DEVICES": ",".join(names[first : first + gpus])})
    if count == 0:
        free.put({})

    def on_free(task: Any) -> Any:
        mine = free.get()
        try:
            return run(task, mine)
        finally:
            free.put(mine)

    with ThreadPoolExecutor(free.qsize()) as pool:
        yield from pool.map(on_free, tasks)


# words of mpx.train: nothing but steps, as many as trainer.max_steps says
ONLY_STEPS = ["trainer.max_epochs=1000", "trainer.check_val_every_n_epoch=1000"]
ONLY_STEPS += ["trainer.limit_val_batches=1", "trainer.limit_test_batches=1"]


def in_memory() -> tempfile.TemporaryDirectory:
    """A folder that no disk slows down, where there is one."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def train(words: Sequence[str]) -> dict[str, Any]:
    """The record of a run of mpx.train, a process of its own. Its output goes to stderr."""
    import mpx

    with in_memory() as folder, redirect_stdout(sys.stderr):
        return mpx.run([*words, "trainer.progress=off", f"output_dir={folder}"])


def bert_without_mask() -> None:
    """Let transformers' BERT make no attention mask. In version 5.17 a compiled or recorded one makes a mask
    of ones, and pays for it.
    """
    from transformers.models.bert import modeling_bert

    modeling_bert.create_bidirectional_mask = lambda **_: None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write(path: Path, columns: Sequence[str], rows: Iterable[dict]) -> None:
    """A CSV file of the rows, each with its ORIGIN where it does not have it, and on disk at once. Exits before
    the file is opened if there is no row: what was measured earlier is not lost to a call that measures nothing.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        sys.exit(f"error: nothing was measured; {path} stays as it is.")
    here, names = origin(), [*(name for name in columns if name not in ORIGIN), *ORIGIN]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in chain([first], rows):
            writer.writerow(here | {"time": now()} | row)
            file.flush()


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def experiment(
    here: Path,
    columns: Sequence[str],
    measure: Callable[[argparse.Namespace], Iterable[dict]],
    card: Callable[[list[dict[str, str]]], dict[str, str]] | None = None,
    *,
    parser: Arguments | None = None,
    file: str = "results.csv",
) -> None:
    """Measure, print each row, write them to here/`file`, and fill the card in here/README.md from them.

    Where $OUT is set, the table is there, and only --card fills the card from it. A trial (--tiny) leaves table
    and card as they are.
    """
    parser = parser or Arguments()
    if card is not None:
        parser.add_argument("--card", action="store_true", help="measure nothing: the card from its table")
    given = vars(options := parser.parse_args())
    folder = Path(os.environ.get("OUT") or (tempfile.mkdtemp() if given.get("tiny") else here))
    if not given.get("card"):
        write(folder / file, columns, printed(measure(options), columns))
        print(f"written to {folder / file}")
    if card is not None and (given["card"] or folder == here):
        fill(here / "README.md", card(read(folder / file)))


def printed(rows: Iterable[dict], columns: Sequence[str]) -> Iterator[dict]:
    """The same rows."""
    for row in rows:
        print({name: row[name] for name in columns if row.get(name) not in (None, "")}, flush=True)
        yield row


def markdown(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of a card."""
    return "\n".join([line(heads), "|---" * len(heads) + "|", *map(line, rows)])


def line(cells: Sequence[object]) -> str:
    """A line of such a table."""
    return "|" + "".join(f" {cell} |" if str(cell) else " |" for cell in cells)


def fill(card: Path, parts: dict[str, str]) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- end of NAME -->` in a card, for each part."""
    text = card.read_text(encoding="utf-8")
    for name, part in parts.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        if not end:
            sys.exit(f"error: {card} has no lines <!-- {name} --> and <!-- end of {name} -->.")
        text = f"{before}{mark}\n{part.strip()}\n\n{end}{after}"
    card.write_text(text, encoding="utf-8")


def said(rows: Sequence[dict[str, str]], template: str) -> str:
    """What the template becomes by each row, each text once."""
    return "; ".join(
        sorted({template.format_map({name: value or "–" for name, value in row.items()}) for row in rows})
    )
