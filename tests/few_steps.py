"""Words of the command line that several tests have: to shorten a run, and small data."""

# any run is a moment long
FEW_STEPS = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "trainer.warmup_steps=0",
)
# of runs in tests/gpu: six steps an epoch
SIX_STEPS = (
    "trainer.max_epochs=2",
    "trainer.limit_train_batches=6",
    "trainer.warmup_steps=2",
    "trainer.accelerator=gpu",
)
TEXT = [
    "data=synthetic",
    "data.kind=text",
    "data.shape=[32]",
    "data.classes=4",
    "data.vocab_size=200",
    "data.samples=1024",
]
