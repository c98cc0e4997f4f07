"""Turn texts into rows of token ids, with a tokenizer that is trained here (and cached) or an existing
one.
"""

from types import SimpleNamespace

import torch
from torch import Tensor

from mpx.data import tokenizer
from mpx.errors import UserError

Ids = dict[str, Tensor]  # split -> int32 [N, T]


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
    ids, written = tokenizer.cached(cfg.cache, settings, every, lambda: encode_trained(cfg, texts))
    from tokenizers import Tokenizer

    trained = Tokenizer.from_str(written)
    return ids, trained.get_vocab_size(), tokenizer.SPECIAL.index("[PAD]")


def encode_words(cfg: SimpleNamespace, words: dict[str, list[list[str]]]) -> tuple[Ids, Ids, int, int]:
    """(ids, places, vocabulary size, id of the padding) of texts that are words, each of which has a label.

    places: for each token, the number of the word that it begins, or -1 if it begins none; int32 [N, T], as
    ids.
    """
    if cfg.tokenizer in ("wordpiece", "bpe"):
        trained = _trained(cfg, [" ".join(part) for part in words["train"]])
        words = {name: _as_in_a_text(trained, part) for name, part in words.items()}
        encoded = {name: trained.encode_batch(part, is_pretokenized=True) for name, part in words.items()}
        size, pad_id = trained.get_vocab_size(), trained.token_to_id("[PAD]")
    else:
        existing = tokenizer.existing(str(cfg.tokenizer), pads=True)
        if not existing.is_fast:
            raise UserError(
                f"data.tokenizer={cfg.tokenizer} does not tell of which word a token is, and "
                "data.task=tokens needs "
                "that. Choose one with tokenizer.json."
            )
        words = {name: _as_in_a_text(existing.backend_tokenizer, part) for name, part in words.items()}
        how = {
            "is_split_into_words": True,
            "truncation": True,
            "padding": "max_length",
            "max_length": cfg.seq_len,
        }
        encoded = {name: existing(part, **how).encodings for name, part in words.items()}
        size, pad_id = len(existing), existing.pad_token_id
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


def encode_trained(cfg: SimpleNamespace, texts: dict[str, list[str]]) -> tokenizer.Made:
    """Train a tokenizer on the train split and encode all splits. Returns (ids, the tokenizer as JSON)."""
    trained = _trained(cfg, texts["train"])
    return {
        name: rows([e.ids for e in trained.encode_batch(part)]) for name, part in texts.items()
    }, trained.to_str()


def _trained(cfg: SimpleNamespace, texts: list[str]):
    if cfg.tokenizer == "wordpiece":
        trained = tokenizer.train_wordpiece(texts, cfg.vocab_size)
    else:
        trained = tokenizer.train_bpe(texts, cfg.vocab_size, tokenizer.SPECIAL)
    tokenizer.fixed_length(trained, cfg.seq_len)
    return trained


def encode_existing(name: str, length: int, texts: dict[str, list[str]]) -> tuple[Ids, int, int]:
    """Like `encode`, with a tokenizer of transformers. Nothing is cached, because the tokenizer's folder may
    change.
    """
    existing = tokenizer.existing(name, pads=True)
    how = {"truncation": True, "padding": "max_length", "max_length": length}
    ids = {split: rows(existing(part, **how)["input_ids"]) for split, part in texts.items()}
    return ids, len(existing), existing.pad_token_id


def rows(ids: list[list[int]]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int32)
