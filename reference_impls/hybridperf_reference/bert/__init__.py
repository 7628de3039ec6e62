"""The BERT model family."""
