"""Export a model to an ONNX graph, in FP32 or with INT8 products, and call it by ONNX Runtime on a CPU.

INT8 weights have one scale per output. For images, activations have fixed scales from the validation set (QDQ
nodes). For texts, the activations of each batch are scaled when it is computed, since their ranges differ
between tokens.
"""

import importlib.util
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from mpx.settings.choices import install

INPUT, OUTPUT = "x", "logits"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
PRODUCTS = {"Conv", "Gemm", "MatMul"}  # they multiply INT8 if a DequantizeLinear produces their operands
# not Gather: a table of embeddings would get one scale for all of its rows
QUANTISED = ["Attention", "Conv", "LSTM", "MatMul"]
INTEGER_PRODUCTS = {"ConvInteger", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulInteger"}


def missing() -> str | None:
    """Why ONNX Runtime cannot be used; None if it can."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed; {install('deploy')} brings them" if absent else None


class OnnxModel:
    """Calls an ONNX graph. content: the file's bytes. Raises RuntimeError if ONNX Runtime refuses the graph,
    or an input.
    """

    def __init__(self, content: bytes):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self.content = content
        with as_runtime_errors():
            self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def __call__(self, x: Tensor) -> Tensor:
        try:  # as_runtime_errors would take time in each call
            (found,) = self.session.run([OUTPUT], {INPUT: x.numpy()})
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return torch.from_numpy(found)


def exported(model: nn.Module, x: Tensor) -> bytes:
    """The model as an ONNX file that takes batches of any size. x: a batch of at least 2. Raises RuntimeError
    if the export fails.
    """
    with as_runtime_errors(), quiet():
        made = torch.onnx.export(
            model, (x,), dynamo=True, verbose=False, input_names=[INPUT], output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        )  # fmt: skip
        assert made is not None  # it is with dynamo=True
        return made.model_proto.SerializeToString()


def quantised(content: bytes, batches: Callable[[], Iterable[Tensor]], *, static: bool) -> bytes:
    """The graph with INT8 products. static: activations have fixed scales, from the inputs in `batches`."""
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxscript import optimizer

    # The graph computes an LSTM's weights from PyTorch's, and the quantiser would take a computed weight for
    # an activation.
    with as_runtime_errors(), quiet():
        given = onnx.load_model_from_string(content)
        model = optimizer.optimize(given, input_size_limit=sys.maxsize, output_size_limit=sys.maxsize)
    # inferred again; onnxruntime before 1.32 transposes weights and keeps the shapes that are given
    del model.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder, as_runtime_errors(), quiet():
        plain, made = Path(folder) / "plain.onnx", Path(folder) / "int8.onnx"
        onnx.save(model, str(plain))
        per_row = {
            "per_channel": True,
            "weight_type": QuantType.QInt8,
            "reduce_range": largest_weight() < 127,
        }
        if static:
            formats = {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8}
            inputs = ({INPUT: x.numpy()} for x in batches())
            calibrating = SimpleNamespace(get_next=lambda: next(inputs, None))
            quantize_static(str(plain), str(made), calibrating, **formats, **per_row)
        else:
            quantize_dynamic(str(plain), str(made), op_types_to_quantize=QUANTISED, **per_row)
        return made.read_bytes()


def quantised_nodes(content: bytes) -> list[str]:
    """Names of the nodes that multiply INT8."""
    import onnx

    graph = onnx.load_model_from_string(content).graph
    weights = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    return [
        node.name for node in graph.node
        if node.op_type in INTEGER_PRODUCTS or (node.op_type in PRODUCTS and weights >= set(node.input[:2]))
    ]  # fmt: skip


def largest_weight() -> int:
    """The largest INT8 weight. A CPU without VNNI adds pairs of products in 16 bits, which saturate unless
    weights have only 7 bits.
    """
    capabilities = torch.cpu.get_capabilities()
    exact = (
        any(value and "vnni" in name for name, value in capabilities.items())
        or capabilities.get("architecture") == "aarch64"
    )
    return 127 if exact else 64


@contextmanager
def as_runtime_errors() -> Iterator[None]:
    """Raise all errors as RuntimeError: those of the exporter and of onnxruntime have no common base, and all
    mean the same.
    """
    try:
        yield
    except Exception as error:
        reason = error.__cause__ or error  # the exporter's own text tells how to mend PyTorch
        raise RuntimeError(f"{type(reason).__name__}: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters, which give advice that a user cannot follow and print the graph of a model that
    they refuse.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
