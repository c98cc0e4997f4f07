import torch

from mpx.training.module import averaged


def mean_of(views):
    return torch.stack(views).mean(0)


def test_each_view_has_its_weight():
    """A model that is not linear, so that averages of images are told from averages of logits."""
    x = torch.rand(4, 3, 6, 5)
    weights = torch.rand(3, 6, 5)

    def model(images):
        return (images * weights).sum((1, 2, 3)).square()[:, None]

    def moved(at):
        rows, columns = [mirrored(range(at - 1, at - 1 + size), size) for size in (6, 5)]
        return x[:, :, rows][:, :, :, columns]

    both = mean_of([model(x), model(x.flip(-1))])
    aside = mean_of([model(view) for at in (0, 2) for view in (moved(at), moved(at).flip(-1))])
    assert torch.equal(averaged(model, x, "none"), model(x))
    torch.testing.assert_close(averaged(model, x, "flip"), both)
    torch.testing.assert_close(averaged(model, x, "flip_shift"), mean_of([both, aside]))


def mirrored(places, size):
    return [size - 2 if place == size else abs(place) for place in places]
