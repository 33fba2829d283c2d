"""What the SGLang plugin adds to `meta_info` of every generated sequence, one value per output token."""

ENTROPY = "output_token_entropy"
"""H_t of softmax(logits / T) over the whole vocabulary (Eq. 8), before top-p and top-k, in nats."""
WEIGHT_VERSION = "output_token_weight_version"
"""The server's weight version, a string, when the token was sampled."""
