"""Three Lightning projects at a size that a GPU notices: a U-Net, a GAN with two optimizers, a transformer language model."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset


class Data(pl.LightningDataModule):
    """Random samples, of which an epoch draws `batches` × `batch_size`, some of them again: the speed does not depend on what they say."""

    def __init__(self, make: str, batches: int, batch_size: int):
        super().__init__()
        self.make, self.batches, self.batch_size = make, batches, batch_size

    def setup(self, stage):
        n = 8 * self.batch_size
        if self.make == "images":
            images = torch.randn(n, 3, 128, 128)
            self.data = TensorDataset(images, (images[:, :1] > 0).float())
        elif self.make == "faces":
            self.data = TensorDataset(torch.randn(n, 3, 64, 64))
        else:
            self.data = TensorDataset(torch.randint(0, 8192, (n, 257)))

    def train_dataloader(self):
        sampler = RandomSampler(self.data, replacement=True, num_samples=self.batches * self.batch_size)
        return DataLoader(self.data, self.batch_size, sampler=sampler, num_workers=4, pin_memory=True, persistent_workers=True)


def block(channels_in: int, channels: int) -> nn.Module:
    def layer(n):
        return [nn.Conv2d(n, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]

    return nn.Sequential(*layer(channels_in), *layer(channels))


class UNet(pl.LightningModule):
    def __init__(self, width: int = 64):
        super().__init__()
        self.example_input_array = torch.zeros(2, 3, 128, 128)
        self.down, self.deeper, self.middle = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up, self.last, self.head = block(6 * width, 2 * width), block(3 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        one = self.down(x)
        two = self.deeper(F.max_pool2d(one, 2))
        low = F.interpolate(self.middle(F.max_pool2d(two, 2)), scale_factor=2)
        up = F.interpolate(self.up(torch.cat([two, low], 1)), scale_factor=2)
        return self.head(self.last(torch.cat([one, up], 1)))

    def training_step(self, batch, index):
        loss = F.binary_cross_entropy_with_logits(self(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


class GAN(pl.LightningModule):
    def __init__(self, width: int = 64):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(*self.doubling(128, 8 * width, 1, 0), *self.doubling(8 * width, 4 * width, 2, 1))
        self.generator.extend([*self.doubling(4 * width, 2 * width, 2, 1), *self.doubling(2 * width, width, 2, 1)])
        self.generator.extend([nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh()])
        self.discriminator = nn.Sequential(*self.halving(3, width), *self.halving(width, 2 * width), *self.halving(2 * width, 4 * width))
        self.discriminator.extend([nn.Flatten(), nn.Linear(4 * width * 64, 1)])

    def doubling(self, a: int, b: int, stride: int, padding: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(a, b, 4, stride, padding), nn.BatchNorm2d(b), nn.ReLU()]

    def halving(self, a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)]

    def training_step(self, batch, index):
        images, (g, d) = batch[0], self.optimizers()
        z = torch.randn(len(images), 128, 1, 1, device=self.device)
        fake = self.generator(z)
        for optimizer, loss in (
            (d, lambda: F.softplus(-self.discriminator(images)).mean() + F.softplus(self.discriminator(fake.detach())).mean()),
            (g, lambda: F.softplus(-self.discriminator(fake)).mean()),
        ):
            optimizer.zero_grad()
            self.manual_backward(loss())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), 2e-4, betas=(0.5, 0.999)) for part in (self.generator, self.discriminator)]


class LM(pl.LightningModule):
    def __init__(self, width: int = 512, layers: int = 6):
        super().__init__()
        self.embed, self.head = nn.Embedding(8192, width), nn.Linear(width, 8192)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def training_step(self, batch, index):
        ids = batch[0]
        mask = nn.Transformer.generate_square_subsequent_mask(256, device=ids.device)
        logits = self.head(self.encoder(self.embed(ids[:, :-1]), mask, is_causal=True))
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 3e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-4, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
