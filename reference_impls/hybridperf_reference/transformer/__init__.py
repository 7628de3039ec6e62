"""Transformer layers shared by the BERT and ViT families."""
