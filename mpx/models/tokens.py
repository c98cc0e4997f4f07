"""The mean over tokens without padding."""

from torch import Tensor


def masked_mean(features: Tensor, ids: Tensor, pad_id: int | None) -> Tensor:
    """Mean over the tokens that are not padding: features [B, T, H], ids [B, T] -> [B, H]; zeros for a text
    of padding only.
    """
    if pad_id is None:
        return features.mean(1)
    # A product reads the features once. A masked sum writes them again, and under autocast once more in FP32.
    mask = (ids != pad_id).to(features.dtype)  # [B, T]
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return (weights.unsqueeze(1) @ features).squeeze(1)
