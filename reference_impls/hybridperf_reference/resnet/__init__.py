"""The ResNet model family."""
