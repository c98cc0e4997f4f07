"""What a data set looks like to a model: the one thing that the data and model rooms share."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Spec:
    """Shape of one batch `(x, y)`.

    | kind  | x                                | y                  | logits              |
    |-------|----------------------------------|--------------------|---------------------|
    | image | float32 [B, C, H, W], normalised | int64 [B]          | [B, classes]        |
    | text  | int64 token ids [B, T], padded   | int64 [B]          | [B, classes]        |
    | lm    | int64 token ids [B, T]           | int64 [B, T], next | [B, T, vocab_size]  |
    """

    kind: str  # "image", "text" or "lm"
    shape: tuple[int, ...]  # one sample: (C, H, W), or (T,)
    classes: int  # logits per sample; for lm the vocabulary size
    vocab_size: int | None = None  # text and lm
    pad_id: int | None = None  # text: the id that fills short samples up; models mask where x == pad_id
    padded: bool = True  # text: False if no sample of the set is padded, so that models need no mask
