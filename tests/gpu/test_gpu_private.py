"""Private API of other libraries that only a CUDA device has."""

import pytest
import torch

from mpx.private.torch_modules import renew_generator

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_generator_draws_again_after_a_failed_capture():
    stream, device = torch.cuda.current_stream(), torch.device("cuda", torch.cuda.current_device())
    with (
        pytest.raises(RuntimeError),
        torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"),
    ):
        torch.rand(2, device=device).item()  # waiting for the device is not possible within a capture
    torch.cuda.set_stream(stream)
    renew_generator(device)
    drawn = []
    for _ in range(2):
        torch.cuda.manual_seed(5)
        drawn.append(torch.rand(4, device=device))
    assert torch.equal(*drawn)
