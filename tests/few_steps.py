"""Overrides that shorten any run to a moment."""

FEW_STEPS = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "trainer.warmup_steps=0",
)
