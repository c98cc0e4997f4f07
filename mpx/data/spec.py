"""What a data set looks like to a model: the one thing that the data and model rooms share."""

from dataclasses import dataclass, field

# the label of a token that does not count; the default ignore_index of PyTorch's cross_entropy
NO_LABEL = -100


@dataclass(frozen=True)
class Spec:
    """Shape of one batch `(x, y)`.

    | kind  | x                                | y                  | logits              |
    |-------|----------------------------------|--------------------|---------------------|
    | image | float32 [B, C, H, W], normalised | by task            | by task             |
    | text  | int64 token ids [B, T], padded   | by task            | by task             |
    | lm    | int64 token ids [B, T]           | int64 [B, T], next | [B, T, vocab_size]  |

    | task           | y                                | logits                                   |
    |----------------|----------------------------------|------------------------------------------|
    | classification | int64 [B]                        | [B, classes]                             |
    | regression     | float32 [B, classes]             | [B, classes]: the values themselves      |
    | multilabel     | float32 [B, classes], 0 or 1     | [B, classes]                             |
    | tokens         | int64 [B, T], NO_LABEL elsewhere | [B, T, classes]; text only               |
    """

    kind: str  # "image", "text" or "lm"
    shape: tuple[int, ...]  # one sample: (C, H, W), or (T,)
    # logits per sample or token; for lm the vocabulary size; for regression the values per sample
    classes: int
    vocab_size: int | None = None  # text and lm
    pad_id: int | None = None  # text: the id that fills short samples up; models mask where x == pad_id
    padded: bool = True  # text: False if no sample of the set is padded, so that models need no mask
    task: str = "classification"
    # of the classes; not in the text, by which speeds are kept
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def ids(self) -> int:
        """`vocab_size` of text and lm. Raises ValueError for images, which have no token ids."""
        if self.vocab_size is None:
            raise ValueError(f"{self.kind} data have no token ids")
        return self.vocab_size
