"""Layers that replace a Linear or Conv2d by a product of rows. Inputs, outputs and memory layout are the same."""

from torch import Tensor, nn
from torch.nn.functional import pad

from mpx.deploy.products import Product

ROWS = 32  # kernels take rows in multiples of this


def as_matrix(layer: nn.Linear | nn.Conv2d) -> Tensor:
    """The layer's weight as [out, in]. A filter's channels are innermost, as in `ConvRows`, so that 2:4 groups stay together."""
    weight = layer.weight.detach()
    return weight if isinstance(layer, nn.Linear) else weight.permute(0, 2, 3, 1).flatten(1)


class Rows(nn.Module):
    """Computes a layer in two steps: `product.prepare`, which a compiler fuses with the operation before it, and `multiply`."""

    def __init__(self, product: Product):
        super().__init__()
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(self.product.prepare(x))


class LinearRows(Rows):
    def multiply(self, x: Tensor) -> Tensor:
        return products(self.product, x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class ConvRows(Rows):
    """A convolution without groups or dilation. Each output position is a row, whose values are the pixels under the filter."""

    def __init__(self, conv: nn.Conv2d, product: Product):
        super().__init__(product)
        self.kernel, self.stride, self.padding = conv.kernel_size, conv.stride, conv.padding

    def multiply(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)  # contiguous where x has channels last
        (height, width), (down, across) = self.padding, self.stride
        if height or width:
            x = pad(x, (0, 0, width, width, height, height))
        if self.kernel == (1, 1):
            x = x[:, ::down, ::across]
            places = x.shape[:3]
        else:
            x = x.unfold(1, self.kernel[0], down).unfold(2, self.kernel[1], across)  # [N, H, W, C, kh, kw]
            places = x.shape[:3]
            x = x.permute(0, 1, 2, 4, 5, 3).flatten(3)
        found = products(self.product, x.flatten(0, 2))
        return found.unflatten(0, places).permute(0, 3, 1, 2)


def products(product: Product, rows: Tensor) -> Tensor:
    """rows: any number, [n, in]."""
    count = rows.shape[0]
    if count % ROWS:  # pad copies even if it adds nothing
        rows = pad(rows, (0, 0, 0, -count % ROWS))
    return product(rows.contiguous())[:count]
