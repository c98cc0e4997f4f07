"""BERT (Devlin et al. 2018, arXiv:1810.04805) from the layers of transformers. Without `pretrained` nothing
is downloaded.

Parameters have the names of `BertForSequenceClassification`, into which a text checkpoint loads strictly. For
images there is one more module, `patch_embedding`, which turns patches of pixels into tokens as in ViT
(arXiv:2010.11929).
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from mpx.data.spec import Spec
from mpx.errors import UserError
from mpx.models.mlp import masked_mean
from mpx.models.pretrained import check_vocabulary, load

MAX_PATCHES = 64  # tokens per image with patch=auto, since attention grows with their square


class BertClassifier(nn.Module):
    """`forward(token ids [B, T]) -> logits [B, classes]`; positions of padding are masked.

    It has the layers of `plain` and computes the same function, but skips unused outputs. With pool="first",
    the last layer computes only the first token. Token types, which are all 0, are added as one row, since
    the gradient of a lookup would be a sum over all tokens.

    The mask is [B, 1, 1, T], which attention broadcasts. transformers would expand a [B, T] mask to [B, 1, T,
    T] and wait for the device to check whether it is all ones.

    plain: transformers' BertForSequenceClassification or BertForTokenClassification. pool: what is
    classified, "first" or "mean" of the tokens. padded: whether any token is padding; without a mask
    attention uses its fastest kernel.
    """

    def __init__(self, plain: Any, pool: str, *, padded: bool):
        super().__init__()
        self.bert: Any = plain.bert
        self.dropout, self.classifier = plain.dropout, plain.classifier
        self.pool, self.pad_id, self.padded = pool, plain.config.pad_token_id, padded

    def forward(self, x: Tensor) -> Tensor:
        states = self._read(x)
        return self._classify(states[:, 0] if self.pool == "first" else masked_mean(states, x, self.pad_id))

    def _read(self, x: Tensor) -> Tensor:
        """Token ids [B, T] -> what `_encode` returns."""
        mask = (x != self.pad_id)[:, None, None, :] if self.padded else None
        return self._encode(self.bert.embeddings.word_embeddings(x), mask)

    def _encode(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Embedded tokens [B, T, hidden] and a mask [B, 1, 1, T] or None -> [B, T, hidden]; for pool=first
        [B, 1, hidden].
        """
        parts, (*layers, last) = self.bert.embeddings, self.bert.encoder.layer
        states = (
            states
            + parts.token_type_embeddings.weight[0]
            + parts.position_embeddings.weight[: states.shape[1]]
        )
        states = parts.dropout(parts.LayerNorm(states))
        for layer in layers:
            states = layer(states, mask)
        return first_token(last, states, mask) if self.pool == "first" else last(states, mask)

    def _classify(self, pooled: Tensor) -> Tensor:
        """[B, hidden] -> [B, classes]. The plain model's pooler reads the first token of a sequence, so it
        gets a sequence of one.
        """
        return self.classifier(self.dropout(self.bert.pooler(pooled[:, None])))


class BertImageClassifier(BertClassifier):
    """`forward(images [B, C, H, W]) -> logits [B, classes]`; each patch of `patch` × `patch` pixels is a
    token, and none is masked.

    shape: [C, H, W]. Raises ValueError for images of another size, whose patches do not match the learnt
    positions.
    """

    def __init__(self, plain: Any, pool: str, patch: int, shape: tuple[int, ...]):
        super().__init__(plain, pool, padded=False)
        channels, *self.size = shape
        self.patch = patch
        self.patch_embedding = nn.Linear(channels * patch**2, plain.config.hidden_size)
        # as BERT's own layers
        nn.init.normal_(self.patch_embedding.weight, std=plain.config.initializer_range)
        nn.init.zeros_(self.patch_embedding.bias)
        # Images do not use the word embeddings. Distributed training would wait for their gradient if they
        # were trainable.
        self.bert.embeddings.word_embeddings.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if list(x.shape[2:]) != self.size:
            raise ValueError(
                f"this BERT takes images of {self.size[0]}×{self.size[1]} pixels, not of "
                f"{x.shape[2]}×{x.shape[3]}"
            )
        # [B, features, tokens]
        patches = nn.functional.unfold(x, self.patch, stride=self.patch) if self.patch > 1 else x.flatten(2)
        states = self._encode(self.patch_embedding(patches.transpose(1, 2)), None)
        return self._classify(states[:, 0] if self.pool == "first" else states.mean(1))


class BertTagger(BertClassifier):
    """`forward(token ids [B, T]) -> logits [B, T, classes]`, by the layers of BertForTokenClassification,
    which has no pooler.
    """

    def __init__(self, plain: Any, *, padded: bool):
        super().__init__(plain, "mean", padded=padded)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.dropout(self._read(x)))


def first_token(layer: Any, states: Tensor, mask: Tensor | None) -> Tensor:
    """A BertLayer's output for the first token only: states [B, T, hidden] -> [B, 1, hidden]."""
    attention, first = layer.attention.self, states[:, :1]
    query, key, value = attention.query(first), attention.key(states), attention.value(states)
    query, key, value = (  # [B, heads, T, size]
        x.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2) for x in (query, key, value)
    )
    dropout = attention.dropout.p if attention.training else 0.0
    # [B, heads, 1, size]
    context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return layer.feed_forward_chunk(layer.attention.output(context.transpose(1, 2).flatten(2), first))


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """A classifier of texts or images, from random weights or, with `pretrained`, from a folder or hub
    name.
    """
    plain: Any
    patch = patch_size(cfg["patch"], spec) if spec.kind == "image" else 1
    tokens = prod(spec.shape[-2:]) // patch**2 if spec.kind == "image" else spec.shape[0]
    settings = {"num_labels": spec.classes, "attn_implementation": "sdpa"}
    if spec.kind == "text":
        settings["pad_token_id"] = spec.pad_id
    network = BertForTokenClassification if spec.task == "tokens" else BertForSequenceClassification
    if cfg["pretrained"]:
        plain = _pretrained(network, cfg["pretrained"], spec, tokens, settings)
    else:
        plain = network(_config(cfg, spec, tokens, settings))
    if spec.task == "tokens":
        return BertTagger(plain, padded=spec.padded)
    if spec.kind == "image":
        return BertImageClassifier(plain, cfg["pool"], patch, spec.shape)
    return BertClassifier(plain, cfg["pool"], padded=spec.padded)


def patch_size(patch: int | str, spec: Spec) -> int:
    """The side of a patch in pixels: `patch`, or for `auto` the smallest that divides the image into at most
    MAX_PATCHES tokens.

    Raises UserError for a side that does not divide the image.
    """
    _, height, width = spec.shape
    fitting = [side for side in range(1, min(height, width) + 1) if height % side == 0 and width % side == 0]
    if patch == "auto":
        return next(
            (side for side in fitting if (height // side) * (width // side) <= MAX_PATCHES), fitting[-1]
        )
    if patch not in fitting:
        raise UserError(
            f"model.patch={patch} does not divide images of {height}x{width} pixels; allowed: "
            f"auto, {str(fitting)[1:-1]}."
        )
    return patch


def _config(cfg: Mapping, spec: Spec, tokens: int, settings: dict) -> BertConfig:
    return BertConfig(
        # images have no words; a size of 0 would leave no row for the padding id
        vocab_size=spec.vocab_size or 1,
        hidden_size=cfg["hidden_size"],
        num_hidden_layers=cfg["num_layers"],
        num_attention_heads=cfg["num_heads"],
        intermediate_size=cfg["intermediate_size"] or 4 * cfg["hidden_size"],
        hidden_dropout_prob=cfg["hidden_dropout"],
        attention_probs_dropout_prob=cfg["attention_dropout"],
        max_position_embeddings=tokens,
        **settings,
    )


def _pretrained(network: type, name: str, spec: Spec, tokens: int, settings: dict) -> Any:
    """Raises UserError for a model that is not a BERT, or a BERT with too few token ids or positions."""
    model, fresh = load(network, name, "model.pretrained", spec, **settings)
    # transformers loads another model's files into a BERT without an error, and leaves nearly all weights
    # random.
    if lacking := [weight for weight in fresh if weight.startswith(("bert.embeddings", "bert.encoder"))]:
        raise UserError(
            f"model.pretrained={name} is not a BERT: it has no {min(lacking)}. Use model=hf "
            f"model.name={name}."
        )
    config = model.config
    if spec.vocab_size:
        check_vocabulary(config.vocab_size, spec, f"model.pretrained={name}")
    if tokens > config.max_position_embeddings:
        raise UserError(
            f"model.pretrained={name} takes at most {config.max_position_embeddings} tokens and the data set "
            f"has {tokens}; shorten the data's sequences."
        )
    return model
