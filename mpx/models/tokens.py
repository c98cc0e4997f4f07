"""The mean over tokens without padding."""

from torch import Tensor


def masked_mean(features: Tensor, ids: Tensor, pad_id: int | None) -> Tensor:
    """Mean over the tokens that are not padding: features [B, T, H], ids [B, T] -> [B, H]; zeros for a text of padding only."""
    if pad_id is None:
        return features.mean(1)
    mask = (ids != pad_id).unsqueeze(-1).to(features.dtype)  # [B, T, 1]
    return (features * mask).sum(1) / mask.sum(1).clamp(min=1)
