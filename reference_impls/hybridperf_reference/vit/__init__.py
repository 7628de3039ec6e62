"""The vision transformer (ViT) model family."""
