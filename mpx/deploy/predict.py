"""The served model's answers to samples without labels, as a CSV file."""

from collections.abc import Sequence

from torch import Tensor

from mpx.data.spec import Spec
from mpx.system.csv_file import to_text


def answers(names: Sequence[str], outputs: Tensor, spec: Spec) -> str:
    """names: the path or text of each sample. outputs: the model's, [N, classes]. Classes without a name are
    numbers.
    """
    of = "path" if spec.kind == "image" else "text"
    if spec.task == "regression":
        values = (" ".join(f"{value:.7g}" for value in row) for row in outputs.tolist())
        rows = [{of: name, "value": value} for name, value in zip(names, values, strict=True)]
        return to_text((of, "value"), rows)
    probabilities, places = (part.tolist() for part in outputs.softmax(-1).max(-1))
    classes = spec.names or range(spec.classes)
    rows = [
        {of: name, "class": classes[place], "probability": probability}
        for name, place, probability in zip(names, places, probabilities, strict=True)
    ]
    return to_text((of, "class", "probability"), rows)
