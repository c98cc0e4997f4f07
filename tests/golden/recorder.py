"""A PyTorch loop in mpx.Recorder, with autocast in BF16."""

import torch
from torch import nn

import mpx

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
images = torch.randn(64, 32)
labels = images[:, :16].argmax(1)
setting = {"model": "net", "data": "made", "precision": "amp_bf16", "sparsity": "dense", "seed": 0}
with mpx.Recorder(study="recorder", setting=setting, model=model) as recorder:
    for _ in range(30):
        with recorder.step(64):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        recorder.log({"train/loss": loss})
    recorder.metrics({"test/accuracy": (model(images).argmax(1) == labels).float().mean().item()})
print(sum(weight.double().abs().sum().item() for weight in model.parameters()))
