"""The VGG family."""
