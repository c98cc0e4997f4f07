"""The verdict on several ways to serve one run."""

import pytest
from made_runs import deployed_row

from mpx.deploy.show import verdict

PLAIN = {"format": "fp32", "quantised_layers": [], "metrics": {"test/accuracy": 0.975}}
FP32 = deployed_row(rate=1000.0, **PLAIN)
FIGURES = "; margin 0.5 points; {} against 1,000 samples/s at batch 256."


def int8(rate, accuracy, **changed):
    return deployed_row(rate=rate, format="int8", metrics={"test/accuracy": accuracy}, **changed)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (
            [int8(2100.0, 0.972), deployed_row(rate=1500.0, **PLAIN | {"format": "bf16"})],
            [
                "INT8 answers 2.10 × as fast as FP32 at no loss of accuracy.",
                "INT8: accuracy 97.2 % against 97.5 %, difference −0.3 points" + FIGURES.format("2,100"),
            ],
        ),
        (
            [int8(2100.0, 0.95)],
            [
                "No other way answers faster than FP32 at no loss of accuracy.",
                "INT8: accuracy 95.0 % against 97.5 %, difference −2.5 points" + FIGURES.format("2,100"),
            ],
        ),
        (
            [int8(900.0, 0.98, sparse_layers=["fc"])],
            [
                "No other way answers faster than FP32 at no loss of accuracy.",
                "INT8 with 2:4 kernels: accuracy 98.0 % against 97.5 %, difference +0.5 points"
                + FIGURES.format("900"),
            ],
        ),
        (
            [int8(2100.0, 0.972, exclusive=False, exclusive_reason="other programs used 12% of the CPU")],
            ["No verdict, since other programs used 12% of the CPU while INT8 was measured."],
        ),
        ([FP32 | {"weights": "dense"}], []),
    ],
)
def test_of_an_accuracy(others, said):
    assert verdict([*others, FP32]) == said


def test_of_a_perplexity():
    def row(fmt, rate, value):
        metric = {"metric": {"name": "test/perplexity", "goal": "min"}, "metrics": {"test/perplexity": value}}
        return deployed_row(rate=rate, format=fmt, quantised_layers=[], **metric)

    assert verdict([row("fp32", 1000.0, 65.6), row("bf16", 1500.0, 65.9)]) == [
        "BF16 answers 1.50 × as fast as FP32 at no loss of perplexity.",
        "BF16: perplexity 65.90 against 65.60; margin 0.5 %; 1,500 against 1,000 samples/s at batch 256.",
    ]
