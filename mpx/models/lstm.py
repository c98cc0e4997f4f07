"""LSTM networks (Hochreiter and Schmidhuber 1997) on torch.nn.LSTM, whose weights hold the gates in the order
i, f, g, o.

Sequences are not packed, so that shapes are fixed, as cuDNN's fused kernel and CUDA graphs need. Padding is
at the end of a text: the forward direction never sees it before a real token, and the mean over the outputs
ignores it. The backward direction of a bidirectional network starts with the padding, whose embeddings are
zero.
"""

import math
from collections.abc import Mapping

from torch import Tensor, nn

from mpx.data.spec import Spec
from mpx.models.mlp import masked_mean

# A decoder with a multiple of so many rows suits Tensor Cores, and 2:4 sparsity. Its products are else three
# times as slow in 16 bits (experiments/language_model).
ROWS = 16


class LSTMClassifier(nn.Module):
    """Classifies the mean of the outputs. It reads an image row by row, with all channels of a row, or a text
    token by token.
    """

    def __init__(
        self, lstm: nn.LSTM, embedding: nn.Embedding | None, dropout: float, classes: int, pad_id: int | None
    ):
        super().__init__()
        self.pad_id = pad_id
        self.embedding = embedding
        self.lstm = lstm
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(lstm.hidden_size * (2 if lstm.bidirectional else 1), classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, C, H, W] or token ids [B, T] -> [B, classes]."""
        if self.embedding is None:
            rows = x.permute(0, 2, 3, 1).flatten(2)  # [B, H, W * C]
            outputs, _ = self.lstm(rows)
            pooled = outputs.mean(1)
        else:
            outputs, _ = self.lstm(self.dropout(self.embedding(x)))  # [B, T, hidden]
            pooled = masked_mean(outputs, x, self.pad_id)
        return self.classifier(self.dropout(pooled))


class LSTMTagger(LSTMClassifier):
    """Classifies the output of each token."""

    embedding: nn.Embedding

    def forward(self, x: Tensor) -> Tensor:
        """x: token ids [B, T] -> [B, T, classes]."""
        outputs, _ = self.lstm(self.dropout(self.embedding(x)))  # [B, T, hidden]
        return self.classifier(self.dropout(outputs))


class LSTMLanguageModel(nn.Module):
    """Predicts each next token. With tied weights the decoder is the transposed embedding (Press and Wolf
    2016, arXiv:1608.05859).

    The embedding has rows for `vocab_size` tokens, and unused ones up to a multiple of ROWS.
    """

    def __init__(
        self, lstm: nn.LSTM, embedding: nn.Embedding, vocab_size: int, dropout: float, tie_weights: bool
    ):
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = embedding
        self.lstm = lstm
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(lstm.hidden_size, embedding.num_embeddings)
        # a decoder with PyTorch's N(0, 1) starts far from uniform probabilities
        nn.init.uniform_(embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tie_weights:
            self.decoder.weight = embedding.weight
        else:
            nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """x: token ids [B, T] -> [B, T, vocab_size]."""
        outputs, _ = self.lstm(self.dropout(self.embedding(x)))  # [B, T, hidden]
        return self.decoder(self.dropout(outputs))[..., : self.vocab_size]


def build(cfg: Mapping, spec: Spec) -> nn.Module:
    """A classifier for images and texts, a language model for lm data."""
    size = cfg["embedding_size"] or cfg["hidden_size"]
    inputs = spec.shape[0] * spec.shape[2] if spec.kind == "image" else size
    # nn.LSTM applies it between layers, and warns if there is one
    between = cfg["dropout"] if cfg["num_layers"] > 1 else 0.0
    lstm = nn.LSTM(
        inputs,
        cfg["hidden_size"],
        cfg["num_layers"],
        batch_first=True,
        dropout=between,
        bidirectional=cfg["bidirectional"],
    )
    if spec.kind == "lm":
        embedding = nn.Embedding(math.ceil(spec.ids / ROWS) * ROWS, size)
        return LSTMLanguageModel(lstm, embedding, spec.ids, cfg["dropout"], cfg["tie_weights"])
    words = None if spec.kind == "image" else nn.Embedding(spec.ids, size, padding_idx=spec.pad_id)
    network = LSTMTagger if spec.task == "tokens" else LSTMClassifier
    return network(lstm, words, cfg["dropout"], spec.classes, spec.pad_id)
