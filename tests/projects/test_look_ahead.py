"""Streams of a project: an epoch knows its last batch, and draws none that it does not train on."""

import pytest
from pytorch_lightning.utilities import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset

from mpx.private.lightning import LookAhead


class Stream(IterableDataset):
    def __init__(self, count: int):
        self.count, self.drawn = count, 0

    def __iter__(self):
        for number in range(self.count):
            self.drawn += 1
            yield number


@pytest.mark.parametrize(("there", "limit"), [(5, 3), (3, 3), (2, 3), (5, 1), (0, 3)])
def test_no_batch_is_drawn_beyond_the_limit(there, limit):
    """A stream may go on in the next epoch from where it is."""
    stream = Stream(there)
    loader = CombinedLoader(DataLoader(stream, batch_size=None), "max_size_cycle")
    loader.limits, ahead, taken = [limit], LookAhead(), min(there, limit)
    ahead.setup(loader)
    for epoch in (1, 2):
        iter(ahead)
        lasts = [next(ahead) and ahead.done for _ in range(taken)]
        assert lasts == [number == taken - 1 for number in range(taken)]
        with pytest.raises(StopIteration):
            next(ahead)
        assert ahead.done
        assert stream.drawn == epoch * taken
