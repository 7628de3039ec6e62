"""The VGG model family."""
