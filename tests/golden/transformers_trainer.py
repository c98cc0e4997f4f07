"""transformers.Trainer with mpx's callbacks: 2:4 masks, and the record of the run."""

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

import mpx
from mpx.compat.transformers import RecorderCallback, SparsityCallback


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


torch.manual_seed(0)
images = torch.randn(256, 32)
samples = [{"x": image, "labels": image[:16].argmax()} for image in images]
model = Net()
pruning = SparsityCallback("2of4")
arguments = TrainingArguments(
    output_dir="trained",
    max_steps=20,
    per_device_train_batch_size=32,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
setting = {"model": "net", "data": "made", "precision": "fp32", "sparsity": "2of4", "seed": 0}
with mpx.Recorder(study="transformers_trainer", setting=setting, model=model) as recorder:
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=samples,
        eval_dataset=samples,
        callbacks=[pruning, RecorderCallback(recorder, pruning)],
    )
    trainer.train()
    trainer.evaluate(samples, metric_key_prefix="test")
print(sum(weight.double().abs().sum().item() for weight in model.parameters()))
