"""Three shapes of public Lightning projects, written afresh, as their authors would have: nothing in them
knows mpx.
"""

import math

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, StochasticWeightAveraging
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Blobs(pl.LightningDataModule):
    """8×8 images of one bright blob, with the mask of the blob."""

    def __init__(self, size: int = 48, batch_size: int = 8):
        super().__init__()
        self.size, self.batch_size = size, batch_size

    @staticmethod
    def made(size):
        made = torch.Generator().manual_seed(0)
        centres = torch.randint(2, 6, (size, 2, 1, 1), generator=made)
        grid = torch.stack(torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij"))
        masks = ((grid - centres).abs().amax(1) <= 1).float()[:, None]  # [N, 1, 8, 8]
        return TensorDataset(masks + 0.3 * torch.randn(masks.shape, generator=made), masks)

    def setup(self, stage):
        self.data = self.made(self.size)

    def train_dataloader(self):
        return DataLoader(self.data, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data, self.batch_size)


class GAN(pl.LightningModule):
    """Two networks, two optimizers, manual optimization; one scheduler that the module steps itself.
    training_step returns nothing.
    """

    def __init__(self, latent: int = 16, lr: float = 2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(
            nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 64), nn.Unflatten(1, (1, 8, 8))
        )
        self.discriminator = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
        )

    def forward(self, z):
        return self.generator(z)

    def adversarial(self, logits, real):
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch, index):
        images, _ = batch
        optimizer_g, optimizer_d = self.optimizers()
        z = torch.randn(len(images), self.hparams.latent, device=self.device)
        self.toggle_optimizer(optimizer_g)
        g_loss = self.adversarial(self.discriminator(self(z)), 1)
        optimizer_g.zero_grad()
        self.manual_backward(g_loss)
        optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        real, fake = (
            self.adversarial(self.discriminator(images), 1),
            self.adversarial(self.discriminator(self(z).detach()), 0),
        )
        optimizer_d.zero_grad()
        self.manual_backward((real + fake) / 2)
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)
        self.log("g_loss", g_loss, prog_bar=True)
        if self.trainer.is_last_batch:
            self.lr_schedulers().step()

    def validation_step(self, batch, index):
        z = torch.linspace(-1, 1, len(batch[0]), device=self.device)[:, None].expand(-1, self.hparams.latent)
        self.log("val_distance", (self(z).mean(0) - batch[0].mean(0)).abs().mean())

    def configure_optimizers(self):
        g = torch.optim.Adam(self.generator.parameters(), self.hparams.lr, betas=(0.5, 0.999))
        d = torch.optim.Adam(self.discriminator.parameters(), self.hparams.lr, betas=(0.5, 0.999))
        return [g, d], [torch.optim.lr_scheduler.StepLR(d, 1, 0.9)]


def block(channels_in, channels):
    return nn.Sequential(nn.Conv2d(channels_in, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())


class UNet(pl.LightningModule):
    """A segmentation U-Net with a Dice loss and metric, and a plateau scheduler."""

    def __init__(self, width: int = 16, lr: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.example_input_array = torch.zeros(2, 1, 8, 8)
        self.down, self.middle, self.up = block(1, width), block(width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        skip = self.down(x)
        low = F.interpolate(self.middle(F.max_pool2d(skip, 2)), scale_factor=2)
        return self.head(self.up(torch.cat([skip, low], 1)))

    def dice(self, logits, mask):
        p = logits.sigmoid()
        return (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)

    def training_step(self, batch, index):
        image, mask = batch
        logits = self(image)
        loss = F.binary_cross_entropy_with_logits(logits, mask) + 1 - self.dice(logits.float(), mask)
        self.log("train/loss", loss)
        return {"loss": loss, "logits": logits.detach()}

    def validation_step(self, batch, index):
        self.log("val/dice", self.dice(self(batch[0]).float(), batch[1]))

    def test_step(self, batch, index):
        self.log("test/dice", self.dice(self(batch[0]).float(), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val/dice"}}


class Numbers(IterableDataset):
    def __iter__(self):
        yield from Blobs.made(48)


class Empty(Blobs):
    """Fewer samples than a batch has."""

    def train_dataloader(self):
        return DataLoader(self.made(3), self.batch_size, drop_last=True)


class Stream(Blobs):
    """Loaders without a length."""

    def train_dataloader(self):
        return DataLoader(Numbers(), self.batch_size)


class Tested(Blobs):
    def test_dataloader(self):
        return DataLoader(self.data, self.batch_size)


class Bare(pl.LightningDataModule):
    """Has no constructor of its own. Lightning's takes any argument."""


class LightningModule:
    """Stands for the class of the package lightning, which holds a second copy of pytorch_lightning."""

    __module__ = "lightning.pytorch.core.module"


class Copied(LightningModule):
    """Comes from `import lightning`."""


class Averaged(UNet):
    """Averages its weights, by a callback that puts a schedule of its own in the place of the module's."""

    def __init__(self, begin: int):
        super().__init__()
        self.begin = begin

    def configure_callbacks(self):
        return [StochasticWeightAveraging(1e-2, swa_epoch_start=self.begin)]

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


class Writing(UNet):
    """Logs by itself, in every process. What it logs before the training begins is dropped."""

    def on_fit_start(self):
        self.logger.experiment.add_text("early", "dropped")
        self.logger.log_metrics({"early": 4.0}, step=0)

    def on_train_start(self):
        self.logger.experiment.add_text("about", "three layers")
        self.logger.log_metrics({"weights": 4.0}, step=0)

    def on_validation_epoch_end(self):
        self.logger.experiment.add_histogram("head", self.head.weight, self.global_step)


class Early(UNet):
    """Stops after its second validation."""

    def configure_callbacks(self):
        return [EarlyStopping("val/dice", mode="max", min_delta=100.0, patience=1)]


class ByLBFGS(UNet):
    """Its optimizer needs a closure. It logs a metric for single steps alone."""

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.log("val/step", 1.0, on_step=True, on_epoch=False)

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), max_iter=2)


class Aimless(UNet):
    """Lightning warns of it, and calls every step."""

    def configure_optimizers(self):
        return None


class Stepless(UNet):
    """For inference alone."""

    training_step = pl.LightningModule.training_step


class Regression(UNet):
    """Logs a metric whose name mpx's own models use, and has test data, which Lightning does not take beside
    a datamodule.
    """

    def validation_step(self, batch, index):
        self.log("val/mse", F.mse_loss(self(batch[0]), batch[1]))

    def test_dataloader(self):
        return DataLoader(Blobs.made(8), 8)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Composed(UNet):
    """Gets its parts built, as in lightning-hydra-template."""

    def __init__(self, net: nn.Module, optimizer, sizes: dict):
        super().__init__()
        assert (type(sizes), type(sizes["head"])) == (dict, list)
        self.net, self.optimizer, self.last = net, optimizer, nn.Conv2d(*sizes["head"], 1)

    def forward(self, x):
        return self.last(self.net(x))

    def configure_optimizers(self):
        return self.optimizer(self.parameters())


class Unvalidated(UNet):
    """Has a training alone."""

    validation_step = pl.LightningModule.validation_step

    def train_dataloader(self):
        return DataLoader(Blobs.made(48), 8, shuffle=True)

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)["loss"]
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class TransformerLM(pl.LightningModule):
    """A language model with its data inside, batches that are dictionaries, and warm-up then inverse square
    root, step by step.
    """

    def __init__(self, vocab: int = 16, width: int = 32, warmup: int = 4):
        super().__init__()
        self.embed, self.head, self.warmup = nn.Embedding(vocab, width), nn.Linear(width, vocab), warmup
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True), 1
        )

    def loader(self, shuffle):
        starts = torch.arange(48)[:, None]
        tokens = (starts * 5 + torch.arange(13)) % 16
        return DataLoader([{"input_ids": row[:-1], "labels": row[1:]} for row in tokens], 8, shuffle=shuffle)

    def train_dataloader(self):
        return self.loader(True)

    def val_dataloader(self):
        return self.loader(False)

    def loss(self, batch):
        ids = batch["input_ids"]
        mask = torch.full((ids.shape[1], ids.shape[1]), -math.inf, device=ids.device).triu(1)
        logits = self.head(self.encoder(self.embed(ids), mask))
        return F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())

    def training_step(self, batch, index):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_perplexity", self.loss(batch).exp())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 3e-3, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / self.warmup, (self.warmup / (step + 1)) ** 0.5)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
