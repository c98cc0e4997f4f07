"""BERT (Devlin et al. 2018, arXiv:1810.04805) from transformers, built from its configuration: nothing is downloaded.

Parameter names are those of `BertForSequenceClassification`, into which a text checkpoint loads strictly. For images there is one
module more, `patch_embedding`, which turns patches of pixels into tokens as ViT does (arXiv:2010.11929).
"""

from collections.abc import Mapping
from math import prod

from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from mpx.errors import UserError
from mpx.models.pretrained import load
from mpx.models.tokens import masked_mean
from mpx.spec import Spec

MOST_TOKENS = 64  # patch=auto takes the smallest patch that leaves at most so many: attention grows with their square


class BertClassifier(BertForSequenceClassification):
    """`forward(token ids [B, T]) -> logits [B, classes]`; positions equal to `config.pad_token_id` are masked.

    The same function as the plain model's, without what nobody reads: where the first token is classified, the last layer computes that
    one alone, and tokens' types, which are all 0, are added as one row and not looked up (their gradient would be 32,768 additions to it).

    The mask is given as [B, 1, 1, T], which attention broadcasts: transformers would expand a [B, T] one to [B, 1, T, T] and wait for
    the device to learn whether it is all ones.
    """

    pool = "first"
    padded = True  # False: no token is padding, so there is no mask, and attention takes its fastest kernel, which knows none

    def forward(self, x: Tensor) -> Tensor:
        mask = (x != self.config.pad_token_id)[:, None, None, :] if self.padded else None
        states = self._encode(self.bert.embeddings.word_embeddings(x), mask)
        return self._classify(states[:, 0] if self.pool == "first" else masked_mean(states, x, self.config.pad_token_id))

    def _encode(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Embedded tokens [B, T, hidden], what to look at [B, 1, 1, T] or None for all -> [B, T, hidden], [B, 1, hidden] of the first."""
        parts, (*layers, last) = self.bert.embeddings, self.bert.encoder.layer
        states = states + parts.token_type_embeddings.weight[0] + parts.position_embeddings.weight[: states.shape[1]]
        states = parts.dropout(parts.LayerNorm(states))
        for layer in layers:
            states = layer(states, mask)
        return first_token(last, states, mask) if self.pool == "first" else last(states, mask)

    def _classify(self, pooled: Tensor) -> Tensor:
        """pooled: [B, hidden] -> [B, classes], through the plain model's pooler, which reads the first of a sequence."""
        return self.classifier(self.dropout(self.bert.pooler(pooled[:, None])))


class BertImageClassifier(BertClassifier):
    """`forward(images [B, C, H, W]) -> logits [B, classes]`; each patch of `patch` × `patch` pixels is one token, none is masked.

    Raises ValueError for images of another size: a position that was learnt would then be that of another place.
    """

    def add_patches(self, patch: int, shape: tuple[int, ...]) -> None:
        """Give a BERT of texts its way in for images of this shape [C, H, W]."""
        channels, *self.size = shape
        self.patch = patch
        self.patch_embedding = nn.Linear(channels * patch**2, self.config.hidden_size)
        self._init_weights(self.patch_embedding)
        # Unused here; frozen, else distributed training would wait for its gradient.
        self.bert.embeddings.word_embeddings.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if list(x.shape[2:]) != self.size:
            raise ValueError(f"this BERT takes images of {self.size[0]}×{self.size[1]} pixels, not of {x.shape[2]}×{x.shape[3]}")
        patches = nn.functional.unfold(x, self.patch, stride=self.patch) if self.patch > 1 else x.flatten(2)  # [B, features, tokens]
        states = self._encode(self.patch_embedding(patches.transpose(1, 2)), None)
        return self._classify(states[:, 0] if self.pool == "first" else states.mean(1))


def first_token(layer: nn.Module, states: Tensor, mask: Tensor | None) -> Tensor:
    """What a BertLayer makes of a sequence's first token. states: [B, T, hidden] -> [B, 1, hidden]."""
    attention, first = layer.attention.self, states[:, :1]
    query, key, value = attention.query(first), attention.key(states), attention.value(states)
    heads = [x.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2) for x in (query, key, value)]  # [B, heads, T, size]
    dropout = attention.dropout.p if attention.training else 0.0
    context = nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=dropout)  # [B, heads, 1, size]
    return layer.feed_forward_chunk(layer.attention.output(context.transpose(1, 2).flatten(2), first))


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """A classifier of texts or images, from scratch or, with `pretrained`, from a folder or hub name."""
    _check(cfg)
    patch = patch_size(cfg["patch"], spec) if spec.kind == "image" else 1
    tokens = prod(spec.shape[-2:]) // patch**2 if spec.kind == "image" else spec.shape[0]
    settings = {"num_labels": spec.classes, "attn_implementation": "sdpa"}
    if spec.kind == "text":
        settings["pad_token_id"] = spec.pad_id
    if cfg["pretrained"]:
        model = _pretrained(cfg["pretrained"], spec, tokens, settings)
    else:
        model = BertForSequenceClassification(_config(cfg, spec, tokens, settings))
    model.__class__ = BertImageClassifier if spec.kind == "image" else BertClassifier  # only forward differs
    model.pool = cfg["pool"]
    if spec.kind == "image":
        model.add_patches(patch, spec.shape)
    return model


def patch_size(patch: int | str, spec: Spec) -> int:
    """The patch's side in pixels: the one asked for, or for `auto` the smallest that divides the image into at most 64 tokens."""
    _, height, width = spec.shape
    fitting = [side for side in range(1, min(height, width) + 1) if height % side == 0 and width % side == 0]
    if patch == "auto":
        return next((side for side in fitting if (height // side) * (width // side) <= MOST_TOKENS), fitting[-1])
    if patch not in fitting:
        raise UserError(f"model.patch={patch} does not divide images of {height}x{width} pixels; allowed: auto, {str(fitting)[1:-1]}.")
    return patch


def _config(cfg: Mapping, spec: Spec, tokens: int, settings: dict) -> BertConfig:
    return BertConfig(
        vocab_size=spec.vocab_size or 1,  # images have none; 0 would leave no row for the padding id
        hidden_size=cfg["hidden_size"],
        num_hidden_layers=cfg["num_layers"],
        num_attention_heads=cfg["num_heads"],
        intermediate_size=cfg["intermediate_size"] or 4 * cfg["hidden_size"],
        hidden_dropout_prob=cfg["hidden_dropout"],
        attention_probs_dropout_prob=cfg["attention_dropout"],
        max_position_embeddings=tokens,
        **settings,
    )


def _check(cfg: Mapping) -> None:
    if cfg["pool"] not in ("first", "mean"):
        raise UserError(f"model.pool={cfg['pool']} is unknown; allowed: first, mean.")
    if cfg["hidden_size"] % cfg["num_heads"]:
        raise UserError(f"model.hidden_size={cfg['hidden_size']} must be a multiple of model.num_heads={cfg['num_heads']}.")


def _pretrained(name: str, spec: Spec, tokens: int, settings: dict) -> nn.Module:
    model, fresh = load(BertForSequenceClassification, name, "model.pretrained", **settings)
    # transformers fills a BERT from another model's files without complaint, leaving nearly everything random.
    if lacking := [weight for weight in fresh if weight.startswith(("bert.embeddings", "bert.encoder"))]:
        raise UserError(f"model.pretrained={name} is no BERT: it lacks {min(lacking)}. Use model=hf model.name={name}.")
    config = model.config
    if spec.vocab_size and spec.vocab_size > config.vocab_size:
        raise UserError(
            f"model.pretrained={name} knows {config.vocab_size} token ids and the data set uses {spec.vocab_size}; "
            "tokenise the data with the tokenizer of that model."
        )
    if tokens > config.max_position_embeddings:
        raise UserError(
            f"model.pretrained={name} takes at most {config.max_position_embeddings} tokens and the data set has {tokens}; "
            "shorten the data's sequences."
        )
    return model
