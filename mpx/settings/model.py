"""Check combinations of model settings, and of model and data."""

from collections.abc import Mapping
from typing import Any

from mpx.errors import UserError
from mpx.settings.data import pretrained
from mpx.settings.values import not_set

KINDS = {"image": "images", "text": "labelled text", "lm": "text for language modelling"}
# family -> the key that names the network
NEEDED = {"torchvision": "name", "timm": "name", "hf": "name", "custom": "_target_"}

TAGGERS = ("bert", "lstm", "hf", "custom")  # families with an output for each token


def check_model(model: Mapping[str, Any], kind: str, task: str, data: str = "") -> None:
    """Raise UserError for the first combination that cannot be built.

    model: settings that each keep their rule; kind: of the data set, and task: as mpx.data.spec.Spec has
    them; data: the set's name, if known.
    """
    if kind not in model["inputs"]:
        takes = " or ".join(KINDS[accepted] for accepted in model["inputs"])
        pair = f"model={model.get('name') or model['family']}" + (f" with data={data}" if data else "")
        raise UserError(
            f"{pair}: this model takes {takes}, the data set is {KINDS[kind]}. Choose another model= or "
            "data=, or a task= that pairs them."
        )
    if task == "tokens" and model["family"] not in TAGGERS:
        raise UserError(
            f"data.task=tokens with model={model.get('name') or model['family']}, which has no output for "
            "each token. "
            "Use model=bert_small, lstm, hf or custom."
        )
    needed = NEEDED.get(model["family"])
    if needed is not None and not model.get(needed) and not model.get("pretrained"):
        raise not_set(f"model.{needed}")
    if data == "wikitext2" and (name := pretrained(model)) is not None:
        raise UserError(
            f"model.pretrained={name} with data=wikitext2, whose tokens are words of its own. Use "
            "data=text_file data.path=FILE, which is "
            "read with the model's tokenizer."
        )
    if model["family"] == "bert":
        _check_heads(model)
    if model["family"] == "lstm" and kind == "lm":
        _check_language_model(model)


def _check_heads(model: Mapping[str, Any]) -> None:
    hidden, heads = model["hidden_size"], model["num_heads"]
    if model["pretrained"] is None and hidden % heads:
        raise UserError(
            f"model.hidden_size={hidden} must be a multiple of model.num_heads={heads}. "
            f"For example model.hidden_size={heads * max(1, hidden // heads)}."
        )


def _check_language_model(model: Mapping[str, Any]) -> None:
    if model["bidirectional"]:
        raise UserError(
            "model.bidirectional=true on language modelling data would read the words to predict. Use "
            "model.bidirectional=false."
        )
    if model["tie_weights"] and model["embedding_size"] not in (None, model["hidden_size"]):
        raise UserError(
            f"model.tie_weights=true needs model.embedding_size={model['embedding_size']} to equal "
            f"model.hidden_size={model['hidden_size']}. Use model.embedding_size=null or "
            "model.tie_weights=false."
        )
