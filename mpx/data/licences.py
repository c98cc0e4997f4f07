"""The licence of each data set's files, as its publisher states it."""

NONE_STATED = "stated by the publisher: none beyond citation"
YOURS = "yours"
LICENCES = {
    "digits": "CC BY 4.0 (UCI Machine Learning Repository)",
    "mnist": NONE_STATED,
    "fashion_mnist": "MIT",
    "cifar10": NONE_STATED,
    "sst2": NONE_STATED,
    "wikitext2": "CC BY-SA",
    "synthetic": "none needed: the samples are random numbers",
    "image_folder": YOURS,
    "text_csv": YOURS,
    "text_file": YOURS,
    "huggingface": YOURS,
    "custom": YOURS,
}
