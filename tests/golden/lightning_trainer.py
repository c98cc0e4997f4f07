"""A Trainer of the user's own with mpx.Precision, mpx.Sparsity and mpx.Record, in emulated FP16."""

import pytorch_lightning as pl
from project import Data, Module

import mpx

pl.seed_everything(0, verbose=False)
module = Module()
trainer = pl.Trainer(
    accelerator="cpu",
    max_epochs=4,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    plugins=mpx.Precision("amp"),
    callbacks=[
        mpx.Sparsity("2of4", recipe="asp"),
        mpx.Throughput(),
        mpx.Numerics(),
        mpx.Record(study="lightning_trainer"),
    ],
)
trainer.fit(module, Data())
trainer.test(module, Data(), verbose=False)
print(sum(weight.double().abs().sum().item() for weight in module.parameters()))
