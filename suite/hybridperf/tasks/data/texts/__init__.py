"""Text for BERT: tokenised once, then sampled as pairs of segments."""
