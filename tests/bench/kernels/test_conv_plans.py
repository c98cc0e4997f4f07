"""cuDNN's algorithms one by one. Its front end plans for a GPU that is described to it, so that much is tested without one."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from mpx.bench.kernels import conv_plans
from mpx.bench.kernels.conv_layers import DIRECTIONS, LAYERS, MEASURED, problem

CPU, GPU = torch.device("cpu"), torch.device("cuda")
# What cudnn.create_device_properties(0).serialize() describes a GPU by, with the figures of an H200.
H200 = {
    "deviceName": "NVIDIA H200", "deviceVer": 900, "cudaDeviceId": 0, "driverVer": 13000, "multiProcessorCount": 132, "warpSize": 32,
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
    "maxCtasPerSM": 32, "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024,
    "totalGlobalMem": 150754820096, "l2CacheSize": 62914560, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "pciDeviceId": 0,
    "isTccDriver": 0, "supportCoopLaunch": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def h200():
    cudnn = pytest.importorskip("cudnn", reason="needs the extra '.[cudnn]'", exc_type=Exception)
    try:
        return cudnn.create_device_properties(json.dumps(H200))
    except RuntimeError as error:
        pytest.skip(f"this cuDNN does not plan for a GPU described so: {error}")


def all_plans(h200, layer, direction, fmt, image=64, batch=2):
    given = problem(layer, direction, fmt, "channels_last", image, batch, CPU)
    graph, bound = conv_plans.planned(given, fmt, device_property=h200)
    return graph, bound, given


def test_a_missing_front_end_is_said_with_what_to_install(monkeypatch):
    assert conv_plans.absent(CPU) == "no CUDA device"
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert conv_plans.absent(GPU) == "not measured: pip install nvidia-cudnn-frontend"


@pytest.mark.parametrize(
    ("raised", "said"), [("OSError('libcudnn.so.9')", "libcudnn.so.9"), ("ModuleNotFoundError('no x', name='x')", "no x")]
)
def test_a_front_end_that_does_not_load_says_why(monkeypatch, tmp_path, raised, said):
    (tmp_path / "cudnn.py").write_text(f"raise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cudnn", raising=False)
    assert conv_plans.absent(GPU) == f"nvidia-cudnn-frontend does not load: {said}"


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (16, 8, 3, 3), (16, 8, 1, 1)])
def test_strides_are_those_of_channels_last(shape):
    tensor = torch.empty(shape).to(memory_format=torch.channels_last)
    laid_out = conv_plans._laid_out(tensor)
    assert laid_out["dim"] == list(shape)
    assert laid_out["stride"] == list(torch.empty(shape, memory_format=torch.channels_last).stride())
    there = torch.arange(tensor.numel()).reshape(shape).to(memory_format=torch.channels_last)
    assert torch.equal(there.as_strided(shape, laid_out["stride"]), there)  # the same memory read the front end's way


@pytest.mark.parametrize(("plan", "name"), [("eng62_k2=4_k13=0", "engine 62"), ("ConvFwd_eng0", "engine 0"), ("other[A=1]", "other[A=1]")])
def test_an_algorithm_is_called_by_its_engine(plan, name):
    assert conv_plans.engine(plan) == name


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
@pytest.mark.parametrize("fmt", MEASURED)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_cudnn_has_plans_for_every_case(h200, layer, direction, fmt):
    graph, bound, given = all_plans(h200, layer, direction, fmt)
    _, operands, like = conv_plans.OPERATIONS[direction]
    assert set(bound) == {*operands.values(), "out"}
    assert list(bound["out"].get_dim()) == list(getattr(given, like).shape)
    found = conv_plans.plans(graph)
    assert list(found.values()) == sorted(set(found.values()))
    sizes = built(graph, found)
    assert sizes
    assert all(size >= 0 for size in sizes.values())


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fp32_and_tf32_share_no_plan(h200, direction):
    """By cuDNN's own note; together they are all that it has for FP32 tensors."""
    graphs = {fmt: all_plans(h200, LAYERS[1], direction, fmt)[0] for fmt in ("fp32", "tf32")}
    of = {fmt: set(built(graph, conv_plans.plans(graph))) for fmt, graph in graphs.items()}
    assert of["fp32"]
    assert of["tf32"]
    assert not of["fp32"] & of["tf32"]
    assert of["fp32"] | of["tf32"] == set(conv_plans.plans(graphs["fp32"]))


def test_a_plan_that_wants_much_workspace_is_refused(h200, monkeypatch):
    graph, *_ = all_plans(h200, LAYERS[1], "input gradient", "fp16", 224, 8)
    sizes = built(graph, conv_plans.plans(graph))
    name, largest = max(sizes.items(), key=lambda item: item[1])
    assert largest > 2**20
    monkeypatch.setattr(conv_plans, "MAX_WORKSPACE", largest - 1)
    with pytest.raises(RuntimeError, match=rf"needs {largest / 2**20:,.0f} MiB of workspace"):
        conv_plans.build(graph, conv_plans.plans(graph)[name])


def test_a_convolution_without_plans_is_a_plain_error(h200):
    given = problem(LAYERS[1], "forward", "fp16", "channels_last", 64, 2, CPU)
    with pytest.raises(RuntimeError):
        conv_plans.planned(replace(given, weight=given.weight[:, :5].contiguous()), "fp16", device_property=h200)


def built(graph, found):
    """Name -> bytes of workspace, of the plans that are this format's."""
    sizes, refused = {}, set()
    for name, index in found.items():
        try:
            sizes[name] = conv_plans.build(graph, index)
        except RuntimeError as error:
            refused.add(str(error))
    assert all(conv_plans.OF_ANOTHER_FORMAT in reason for reason in refused), refused
    return sizes
