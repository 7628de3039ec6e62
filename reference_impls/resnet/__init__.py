"""The ResNet family."""
