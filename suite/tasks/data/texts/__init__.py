"""Running text as BERT reads it: tokenised once, then drawn as pairs of segments."""
