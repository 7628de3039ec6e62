"""The BERT family."""
