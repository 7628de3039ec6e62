"""A small MLP-Mixer (Tolstikhin et al. 2021): plain PyTorch, with nothing about parallelism."""

from __future__ import annotations

from torch import Tensor, nn


class Patches(nn.Module):
    """Cut images [batch, 1, size, size] into patches, and embed each as a token."""

    def __init__(self, patch_px: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch_px, stride=patch_px)

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens [batch, token, width]."""
        tokens: Tensor = self.embed(images).flatten(2).transpose(1, 2)
        return tokens


class Block(nn.Module):
    """Mix what is at different places, then what is at one place."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.places = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.before_places, self.before_channels = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        mixed = self.places(self.before_places(tokens).transpose(1, 2)).transpose(1, 2)
        tokens = tokens + mixed
        both: Tensor = tokens + self.channels(self.before_channels(tokens))
        return both


class Head(nn.Module):
    """Classify an image by the mean of its tokens."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.classify = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return a score for each class [batch, class]."""
        scores: Tensor = self.classify(self.norm(tokens).mean(dim=1))
        return scores


class Mixer(nn.Module):
    """Classify images."""

    def __init__(self, image_px: int, patch_px: int, width: int, blocks: int, classes: int) -> None:
        super().__init__()
        tokens = (image_px // patch_px) ** 2
        self.patches = Patches(patch_px, width)
        self.blocks = nn.Sequential(*(Block(tokens, width) for _ in range(blocks)))
        self.head = Head(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each class [batch, class]."""
        scores: Tensor = self.head(self.blocks(self.patches(images)))
        return scores
