"""A language model's test loss, perplexity and accuracy, computed by hand from its checkpoint and the
text.
"""

import math
import random

import pytest
import torch

LENGTH, HIDDEN = 12, 16
WORDS = [
    "model=lstm", f"model.hidden_size={HIDDEN}", "model.num_layers=1", "data=text_file",
    f"data.seq_len={LENGTH}",
    "data.batch_size=8", "data.eval_batch_size=4", "trainer.max_steps=3", "trainer.max_epochs=1",
    "trainer.progress=off",
]  # fmt: skip


def by_hand(text, checkpoint, windows, dtype):
    """(loss, accuracy) over the first `windows` windows of the last twentieth of the text, one window at a
    time.
    """
    weights = {name: weight.to(dtype) for name, weight in checkpoint["state_dict"].items()}
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(letter) for letter in text[len(text) * 95 // 100 :]])
    lstm = torch.nn.LSTM(HIDDEN, HIDDEN, batch_first=True).to(dtype)
    lstm.load_state_dict(
        {name.removeprefix("lstm."): weight for name, weight in weights.items() if name.startswith("lstm.")}
    )
    assert torch.equal(weights["decoder.weight"], weights["embedding.weight"]), "tied"
    loss = right = 0.0
    for start in range(0, windows * LENGTH, LENGTH):
        x, y = ids[start : start + LENGTH], ids[start + 1 : start + LENGTH + 1]
        outputs, _ = lstm(weights["embedding.weight"][x][None])
        logits = (outputs[0] @ weights["decoder.weight"].T + weights["decoder.bias"])[
            :, : len(alphabet)
        ].double()
        loss -= logits.log_softmax(-1)[torch.arange(LENGTH), y].sum().item()
        right += (logits.argmax(-1) == y).sum().item()
    return loss / (windows * LENGTH), right / (windows * LENGTH)


@pytest.mark.parametrize(
    ("words", "windows", "dtype", "near"),
    [
        # four batches, the last of two windows; the test's last 7 tokens fill no window
        ([], 14, torch.float32, 1e-5),
        (["trainer.limit_test_batches=3", "trainer.accumulate_grad_batches=2"], 12, torch.float32, 1e-5),
        (["sparsity=2of4", "label_smoothing=0.3"], 14, torch.float32, 1e-5),
        (["precision=bf16_true"], 14, torch.bfloat16, 1e-3),
    ],
)
@torch.no_grad()
def test_the_mean_is_over_tokens(train, tmp_path, words, windows, dtype, near):
    text = "".join(random.Random(0).choices("abcdefgh ", k=3519))  # 176 of them are the test's
    (tmp_path / "text.txt").write_text(text)
    ran = train(*WORDS, f"data.path={tmp_path}/text.txt", *words)
    assert ran.code == 0, ran.err
    loss, accuracy = by_hand(
        text, torch.load(ran.folder / "checkpoints" / "last.ckpt", weights_only=True), windows, dtype
    )
    found = ran.record["metrics"]
    assert found["test/loss"] == pytest.approx(loss, rel=near)
    assert found["test/perplexity"] == pytest.approx(math.exp(loss), rel=near)
    assert found["test/accuracy"] == pytest.approx(accuracy, abs=1e-12 if dtype == torch.float32 else 0.01)
