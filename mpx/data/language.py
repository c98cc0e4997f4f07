"""Language modelling on WikiText-2 (tokens are words) or any text file (tokens are characters, byte pairs or
those of a model).
"""

from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from mpx.data import tokenizer
from mpx.data.files import download, find, folder, need, read_text
from mpx.data.spec import Spec
from mpx.data.splits import Data, Windows
from mpx.errors import UserError

WORDS = 33_278  # size of WikiText-2's published vocabulary, with <unk> and <eos>
WIKITEXT = (
    "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
    "/word_language_model/data/wikitext-2"
)
SHA256 = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}


def load_wikitext2(cfg: SimpleNamespace) -> Data:
    """The words of the three files; each line ends with <eos>. Raises UserError for files."""
    where = folder(cfg) / "wikitext-2"
    for part, digest in SHA256.items():
        if cfg.download and find(where, *wiki_names(part)) is None:
            download(f"{WIKITEXT}/{part}.txt", where / f"{part}.txt", digest)
    place: dict[str, int] = {}  # word -> id, in the order of first appearance
    streams = [word_ids(read_text(need(where, *wiki_names(part))), place) for part in SHA256]
    if len(place) != WORDS:
        raise UserError(
            f"data.root: the files in {where} have {len(place):,} different words where WikiText-2 has "
            f"{WORDS:,}: fetch them again"
        )
    return lm_data(cfg, streams, len(place))


def wiki_names(part: str) -> tuple[str, str]:
    """The names of a part's file: the publisher's, and a shorter one that many copies have."""
    return f"wiki.{part}.tokens", f"{part}.txt"


def word_ids(text: str, place: dict[str, int]) -> Tensor:
    """The ids of a text's words, int32 [L]. Adds new words to `place`, which gives each word its id."""
    words = (word for line in text.removesuffix("\n").split("\n") for word in (*line.split(), "<eos>"))
    return torch.tensor([place.setdefault(word, len(place)) for word in words], dtype=torch.int32)


def load_text_file(cfg: SimpleNamespace) -> Data:
    """Texts of `path`, `val_path` and `test_path`. If val_path or test_path is null, a twentieth of `path`,
    at its end, takes its place.

    Raises UserError for the files and the tokenizer.
    """
    text, *others = (read_part(cfg, key) for key in ("path", "val_path", "test_path"))
    parts = [text or "", *(other or "" for other in others)]
    text, absent = parts[0], [place for place in (1, 2) if not parts[place]]
    # the ends of the train set and of what follows it; with both absent at 90, 95 and 100 %
    cuts = [len(text) * (100 - 5 * left) // 100 for left in range(len(absent), -1, -1)]
    for place, start, end in zip((0, *absent), (0, *cuts), cuts, strict=False):
        parts[place] = text[start:end]
    return lm_data(cfg, *STREAMS.get(cfg.tokenizer, by_existing)(cfg, parts))


def read_part(cfg: SimpleNamespace, key: str) -> str | None:
    """The text of the file that the setting `key` names; None for null. Raises UserError."""
    if getattr(cfg, key) is None:
        return None
    path = Path(str(getattr(cfg, key))).expanduser()
    if not (text := read_text(path)):
        raise UserError(f"data.{key}={path} is empty: give a text file with text in it")
    return text


def characters(cfg: SimpleNamespace, parts: list[str]) -> tuple[list[Tensor], int]:
    """(ids of each part, int32; number of different characters in the file). Ids are in the order of the code
    points.
    """
    codes = [torch.tensor(list(map(ord, part)), dtype=torch.int32) for part in parts]
    alphabet, ids = torch.cat(codes).unique(return_inverse=True)
    return list(ids.to(torch.int32).split([len(part) for part in codes])), len(alphabet)


def byte_pairs(cfg: SimpleNamespace, parts: list[str]) -> tuple[list[Tensor], int]:
    """(ids of each part, int32; vocabulary size) of a byte-pair tokenizer trained on the first part;
    cached.
    """
    from tokenizers import Tokenizer

    def make() -> tokenizer.Made:
        trained = tokenizer.train_bpe(lines(parts[0]), cfg.vocab_size, special=[])
        return {
            str(i): joined(trained.encode_batch(lines(part))) for i, part in enumerate(parts)
        }, trained.to_str()

    ids, written = tokenizer.cached(
        cfg.cache, {"kind": "bpe stream", "vocab_size": cfg.vocab_size}, parts, make
    )
    return [ids[str(i)] for i in range(3)], Tokenizer.from_str(written).get_vocab_size()


def by_existing(cfg: SimpleNamespace, parts: list[str]) -> tuple[list[Tensor], int]:
    """(ids of each part, int32; vocabulary size) of a tokenizer of transformers. Nothing is cached, because
    its folder may change.

    A part is one text: tokenizers such as Llama's would begin each line with a space. verbose: whether to
    warn of a text that is longer than the model's longest.
    """
    existing = tokenizer.existing(str(cfg.tokenizer), pads=False)
    ids = [existing(part, add_special_tokens=False, verbose=False)["input_ids"] for part in parts]
    return [torch.tensor(part, dtype=torch.int32) for part in ids], len(existing)


# data.tokenizer -> what makes streams of token ids; anything else names an existing tokenizer
STREAMS = {"char": characters, "bpe": byte_pairs}


def lines(text: str) -> list[str]:
    """Lines with their ends. On lines the tokenizer works in parallel and needs little memory."""
    return text.splitlines(keepends=True)


def joined(encoded: list) -> Tensor:
    return torch.tensor([i for line in encoded for i in line.ids], dtype=torch.int32)


def lm_data(cfg: SimpleNamespace, streams: list[Tensor], vocab_size: int) -> Data:
    """Cut streams into windows of `seq_len` tokens; train windows start at another offset each epoch. Raises
    UserError if too short.
    """
    length = cfg.seq_len
    splits = [Windows(stream, length, shift=i == 0) for i, stream in enumerate(streams)]
    for name, split in zip(("train", "validation", "test"), splits, strict=True):
        if len(split) == 0:
            raise UserError(
                f"data.seq_len={length} is longer than the {name} part of {len(split.stream)} tokens allows: "
                "lower data.seq_len or give more text"
            )
    return Data(Spec("lm", (length,), vocab_size, vocab_size=vocab_size), *splits)
