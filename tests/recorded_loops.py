"""Plain loops in an mpx.Recorder, for the tests of it."""

import json

import torch

SETTING = {"model": "net", "data": "set", "precision": "fp32", "sparsity": "dense", "seed": 0}


def result(recorder):
    return json.loads((recorder.folder / "result.json").read_text())


def train(recorder, model, steps=3, *, autocast=None, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with (
            recorder.step(4),
            torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None),
        ):
            loss = model(torch.ones(4, 16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.log({"train/loss": loss})
