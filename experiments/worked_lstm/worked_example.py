"""The worked example through mpx's LSTM: every number of it, in the precision of the context that it is called in."""

import copy
from pathlib import Path

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

import mpx
from mpx.models import build
from mpx.spec import Spec

EXAMPLE = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("example.yaml")))
GATES = ("i", "f", "a", "o")  # PyTorch's order: i, f, g, o, and its g is the example's a
INPUTS = torch.tensor(EXAMPLE["x"])  # [T, in]
TARGETS = torch.tensor(EXAMPLE["target"])


def lstm(dtype: torch.dtype) -> nn.LSTM:
    """The nn.LSTM inside mpx's model for an image of two rows and two columns, with the example's weights.

    PyTorch has two biases where the example has one: b_ih is the example's, b_hh is zero and stays so. Both get the same gradient,
    so that training both would move their sum twice as far.
    """
    cfg = OmegaConf.load(Path(mpx.__file__).parents[1] / "conf" / "model" / "lstm.yaml")
    cell = build(OmegaConf.merge(cfg, {"hidden_size": 1, "num_layers": 1}), Spec("image", (1, 2, 2), 2)).lstm.to(dtype)
    with torch.no_grad():
        for parameter, name in ((cell.weight_ih_l0, "W"), (cell.weight_hh_l0, "U"), (cell.bias_ih_l0, "b")):
            parameter.copy_(weights(name).view_as(parameter))
        cell.bias_hh_l0.zero_()
    cell.bias_hh_l0.requires_grad_(False)
    return cell


def weights(name: str) -> Tensor:
    """name: W, U or b -> [4, 2] or [4], in PyTorch's order of gates."""
    return torch.tensor([EXAMPLE[name][gate] for gate in GATES], dtype=torch.float64)


def numbers(dtype: torch.dtype) -> dict[str, float]:
    """{"forward out[0]": 0.536, …}: all figures of the LSTM example, with the names of example.yaml."""
    return stepwise(lstm(dtype)) | trained(lstm(dtype))


def stepwise(cell: nn.LSTM) -> dict[str, float]:
    """One time step per call, each on a copy of the weights: the gradient of a copy's bias is the δ of that step's gates alone."""
    found: dict[str, float] = {}
    outs, states, hidden, steps, gates, xs = [], [], [], [], [], []
    h = c = torch.zeros(1, 1, 1, dtype=cell.weight_ih_l0.dtype)
    for x in INPUTS.to(h.dtype):
        step, x = copy.deepcopy(cell), x.clone().requires_grad_()
        gates.append(gate_values(step, x, h))
        out, (h, c) = step(x.view(1, 1, 2), (h, c))
        for tensor in (out, h, c):
            tensor.retain_grad()
        outs, hidden, states, steps, xs = [*outs, out], [*hidden, h], [*states, c], [*steps, step], [*xs, x]
    loss(torch.cat(outs).flatten()).backward()
    for t, step in enumerate(steps):
        found |= {f"forward {gate}[{t}]": value for gate, value in gates[t].items()}
        found |= {f"forward out[{t}]": outs[t].item(), f"forward state[{t}]": states[t].item()}
        later, own = (tensor.grad.item() if tensor.grad is not None else 0.0 for tensor in (hidden[t], outs[t]))
        found |= {f"backward D_out[{t}]": own, f"backward dh_out[{t}]": later, f"backward d_out[{t}]": own + later}
        # through the next state by autograd; through this step's output, which happens inside the LSTM, by its formula
        carried = states[t].grad.item() if states[t].grad is not None else 0.0
        inside = (own + later) * gates[t]["o"] * (1 - torch.tanh(states[t].to(step.weight_ih_l0.dtype)).item() ** 2)
        found[f"backward d_state[{t}]"] = carried + inside
        found |= {f"backward d_{gate}[{t}]": delta for gate, delta in zip(GATES, step.bias_ih_l0.grad.tolist(), strict=True)}
        found |= {f"backward d_x{j + 1}[{t}]": delta for j, delta in enumerate(xs[t].grad.tolist())}
    return found


@torch.no_grad()
def gate_values(cell: nn.LSTM, x: Tensor, h: Tensor) -> dict[str, float]:
    """What nn.LSTM keeps to itself, by its formula: products in the format of the context; their sum, tanh and σ in the weights' own."""
    own, linear = cell.weight_ih_l0.dtype, nn.functional.linear
    before = linear(x[None], cell.weight_ih_l0, cell.bias_ih_l0).to(own) + linear(h[0], cell.weight_hh_l0).to(own)  # [1, 4]
    return {gate: (value.tanh() if gate == "a" else value.sigmoid()).item() for gate, value in zip(GATES, before[0], strict=True)}


def trained(cell: nn.LSTM) -> dict[str, float]:
    """Both time steps in one call, back-propagation through time, and one step of SGD."""
    outputs, _ = cell(INPUTS.to(cell.weight_ih_l0.dtype)[None])
    loss(outputs.flatten()).backward()
    parameters = {"W": cell.weight_ih_l0, "U": cell.weight_hh_l0, "b": cell.bias_ih_l0}
    found = {f"gradients d{name} {key}": value for name, weight in parameters.items() for key, value in named(weight.grad)}
    torch.optim.SGD(parameters.values(), lr=EXAMPLE["learning_rate"]).step()
    return found | {f"updated {name} {key}": value for name, weight in parameters.items() for key, value in named(weight.detach())}


def named(weight: Tensor) -> list[tuple[str, float]]:
    """weight: [4, in] or [4] -> ("a1", value), ("a2", value), …; without a number where there is one value per gate."""
    rows = weight.reshape(4, -1).tolist()
    return [(f"{gate}{j + 1 if len(row) > 1 else ''}", value) for gate, row in zip(GATES, rows, strict=True) for j, value in enumerate(row)]


def loss(outputs: Tensor) -> Tensor:
    return 0.5 * (outputs - TARGETS.to(outputs.dtype)).square().sum()


def printed() -> dict[str, float]:
    """The course's figures under the names of `numbers` and of the softmax."""
    found = {}
    for part, groups in EXAMPLE["printed"].items():
        for group, figures in groups.items():
            template = f"{part} {{}}[{group}]" if part in ("forward", "backward") else f"{part} {group} {{}}"
            found |= {template.format(name): value for name, value in figures.items()}
    return found
