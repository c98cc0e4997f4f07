"""Texts to rows of token ids: by a tokenizer that the `tokenizers` library trains, cached with its ids, or by
one that transformers loads.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from mpx.errors import UserError, first_line
from mpx.system.whole_file import write_whole

Ids = dict[str, Tensor]  # split -> int32 [N, T]
Made = tuple[dict[str, Tensor], str]  # token ids by name, and their tokenizer as JSON

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]  # ids 0 to 3
# An existing tokenizer has one of them. Without any, transformers makes an empty tokenizer.
FILES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
ANOTHER = (
    "choose wordpiece, bpe, a folder with tokenizer.json, or a hub name on a machine with internet access. A "
    "pretrained model is given its own tokenizer unless data.tokenizer names another one"
)


def encode(cfg: SimpleNamespace, texts: dict[str, list[str]]) -> tuple[Ids, int, int]:
    """(ids of each split, vocabulary size, id of the padding), by the settings tokenizer, vocab_size, seq_len
    and cache.

    A tokenizer is trained on the train split only. Raises UserError for an existing one that cannot be
    loaded.
    """
    if cfg.tokenizer not in ("wordpiece", "bpe"):
        return encode_existing(str(cfg.tokenizer), cfg.seq_len, texts)
    splits = [(split, len(part)) for split, part in texts.items()]  # else val and test of one size could swap
    settings = {"kind": cfg.tokenizer, "vocab_size": cfg.vocab_size, "length": cfg.seq_len, "splits": splits}
    every = (text for part in texts.values() for text in part)
    ids, written = cached(cfg.cache, settings, every, lambda: encode_trained(cfg, texts))
    from tokenizers import Tokenizer

    trained = Tokenizer.from_str(written)
    return ids, trained.get_vocab_size(), SPECIAL.index("[PAD]")


def encode_words(cfg: SimpleNamespace, words: dict[str, list[list[str]]]) -> tuple[Ids, Ids, int, int]:
    """(ids, places, vocabulary size, id of the padding) of texts that are words, each of which has a label.

    places: for each token, the number of the word that it begins, or -1 if it begins none; int32 [N, T], as
    ids.
    """
    if cfg.tokenizer in ("wordpiece", "bpe"):
        tokenizer = _trained(cfg, [" ".join(part) for part in words["train"]])
        size, pad_id = tokenizer.get_vocab_size(), tokenizer.token_to_id("[PAD]")
    else:
        loaded = existing(str(cfg.tokenizer), pads=True)
        if not loaded.is_fast:
            raise UserError(
                f"data.tokenizer={cfg.tokenizer} does not tell of which word a token is, and "
                "data.task=tokens needs that. Choose one with tokenizer.json."
            )
        tokenizer, size, pad_id = loaded.backend_tokenizer, len(loaded), loaded.pad_token_id
        fixed_length(tokenizer, cfg.seq_len, loaded.pad_token)
    encoded = {
        name: tokenizer.encode_batch(_as_in_a_text(tokenizer, part), is_pretokenized=True)
        for name, part in words.items()
    }
    ids = {name: rows([one.ids for one in part]) for name, part in encoded.items()}
    places = {name: rows([_first_tokens(one.word_ids) for one in part]) for name, part in encoded.items()}
    return ids, places, size, pad_id


def _as_in_a_text(tokenizer, texts: list[list[str]]) -> list[list[str]]:
    """The words of each text, with a space before each where only then they get the tokens that they have
    within a text.

    Byte pairs as GPT-2's or RoBERTa's have other tokens for a word than for the same letters within a word.
    """
    within = tokenizer.encode("a a", add_special_tokens=False).ids
    pairs = (["a", "a"], ["a", " a"])
    apart, spaced = (
        tokenizer.encode(two, is_pretokenized=True, add_special_tokens=False).ids for two in pairs
    )
    return [[f" {word}" for word in words] for words in texts] if apart != within == spaced else texts


def _first_tokens(word_ids: list[int | None]) -> list[int]:
    """For each token, the number of the word that begins with it, or -1."""
    before = [None, *word_ids]
    return [
        -1 if word is None or word == last else word for word, last in zip(word_ids, before, strict=False)
    ]


def encode_trained(cfg: SimpleNamespace, texts: dict[str, list[str]]) -> Made:
    """Train a tokenizer on the train split and encode all splits. Returns (ids, the tokenizer as JSON)."""
    trained = _trained(cfg, texts["train"])
    return {
        name: rows([e.ids for e in trained.encode_batch(part)]) for name, part in texts.items()
    }, trained.to_str()


def _trained(cfg: SimpleNamespace, texts: list[str]):
    """A tokenizer that writes `[CLS] text [SEP]`, cut and padded to `seq_len` tokens."""
    from tokenizers.processors import TemplateProcessing

    if cfg.tokenizer == "wordpiece":
        trained = train_wordpiece(texts, cfg.vocab_size)
    else:
        trained = train_bpe(texts, cfg.vocab_size, SPECIAL)
    ends = [(name, trained.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    trained.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    fixed_length(trained, cfg.seq_len, "[PAD]")
    return trained


def encode_existing(name: str, length: int, texts: dict[str, list[str]]) -> tuple[Ids, int, int]:
    """Like `encode`, with a tokenizer of transformers. Nothing is cached, because the tokenizer's folder may
    change.
    """
    loaded = existing(name, pads=True)
    how = {"truncation": True, "padding": "max_length", "max_length": length}
    ids = {split: rows(loaded(part, **how)["input_ids"]) for split, part in texts.items()}
    return ids, len(loaded), loaded.pad_token_id


def rows(ids: list[list[int]]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int32)


def train_wordpiece(texts: list[str], vocab_size: int):
    """A WordPiece tokenizer like BERT's: lowercase, split at spaces and punctuation, words cut into the
    longest known pieces.

    The library's trainer numbers letters in the order of a hash table, which differs between ranks. It
    therefore gets the letters as "special" tokens in a fixed order, and its vocabulary goes into a second
    tokenizer in which only SPECIAL are special.
    """
    from tokenizers import Tokenizer, models, trainers

    draft = wordpiece_shell(Tokenizer(models.WordPiece(unk_token="[UNK]")))
    special = [*SPECIAL, *letters(draft, texts)]
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    draft.train_from_iterator(texts, trainer=trainer)
    tokenizer = wordpiece_shell(Tokenizer(models.WordPiece(draft.get_vocab(), unk_token="[UNK]")))
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def wordpiece_shell(tokenizer):
    """Set the normalizer, pre-tokenizer and decoder: lowercase, split at spaces and punctuation."""
    from tokenizers import decoders, normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def letters(tokenizer, texts: list[str]) -> list[str]:
    """The letters in `texts`, sorted: first as the start of a word (a), then as a continuation (##a)."""
    different = {word for text in texts for word in tokenizer.normalizer.normalize_str(text).split()}
    words = {word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(" ".join(sorted(different)))}
    first = {letter for word in words for letter in word}
    return sorted(first) + sorted({f"##{letter}" for word in words for letter in word[1:]})


def train_bpe(texts: list[str], vocab_size: int, special: list[str]):
    """A byte-pair tokenizer like GPT-2's: it keeps upper and lower case and has no unknown token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def fixed_length(tokenizer, length: int, pad: str) -> None:
    """Make the tokenizer cut and pad each text to `length` tokens. pad: the token that fills it."""
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=tokenizer.token_to_id(pad), pad_token=pad)


def existing(name: str, *, pads: bool):
    """Load the tokenizer of a folder or of the hub with transformers, without running code from the hub. It
    pads on the right, because BERT and others count positions from the first token. Raises UserError.

    pads: whether the texts are padded, for which it needs a token.
    """
    from transformers import AutoTokenizer

    from mpx.system.hub import hub_answers, quiet

    if os.path.isdir(name) and not any(fnmatch(file, kind) for file in os.listdir(name) for kind in FILES):
        raise UserError(f"data.tokenizer={name} has no tokenizer's file ({', '.join(FILES)}): {ANOTHER}")
    # transformers retries an unreachable hub for half a minute
    local = os.path.isdir(name) or not hub_answers()
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(
                name, padding_side="right", trust_remote_code=False, local_files_only=local
            )
    except Exception as error:  # damaged files raise nearly anything
        raise UserError(f"data.tokenizer={name} cannot be loaded ({first_line(error)}): {ANOTHER}") from error
    if pads and tokenizer.pad_token_id is None:
        raise UserError(
            f"data.tokenizer={name} has no padding token, which texts of different lengths need. Set its "
            "pad_token, as GPT-2's to its eos_token, and save it with save_pretrained; or choose another one."
        )
    return tokenizer


def cached(folder: str, settings: dict, texts: Iterable[str], make: Callable[[], Made]) -> Made:
    """What `make` returns, from the file in `folder` that is named by a hash of everything that it depends
    on.

    A file that is missing or damaged is written. A folder that cannot be written to causes a warning.
    """
    from safetensors import safe_open
    from safetensors.torch import save

    path = Path(folder).expanduser() / f"{cache_key(settings, texts)}.safetensors"
    # a damaged file raises nearly anything
    with suppress(Exception), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()["tokenizer"]  # noqa: SIM118
    ids, tokenizer = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save(ids, metadata={"tokenizer": tokenizer}))
    except OSError as error:
        warnings.warn(
            f"data.cache: cannot write to {path.parent} ({error.strerror or error}), so the tokenizer is "
            "trained again next time: choose another data.cache",
            stacklevel=2,
        )
    return ids, tokenizer


def cache_key(settings: dict, texts: Iterable[str]) -> str:
    """A hash of settings, texts, and the library's version, on which it depends what a tokenizer learns from
    them.
    """
    about = settings | {"tokenizers": version("tokenizers"), "layout": 2}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for text in texts:
        content = text.encode()
        digest.update(b"%d " % len(content) + content)
    return digest.hexdigest()[:32]
