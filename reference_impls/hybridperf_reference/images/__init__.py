"""Image classification objectives: reading, augmentation, normalization and loss."""
