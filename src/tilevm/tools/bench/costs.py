"""What operators cost beside bytes."""

# Vector operations an element, where it is not one: what a good polynomial takes, or the
# processor's divider. Names are ATen's, without overload and underscore.
COSTS = {
    "div": 6,
    "reciprocal": 6,
    "sqrt": 8,
    "rsqrt": 8,
    "exp": 10,
    "log": 12,
    "tanh": 16,
    "sigmoid": 16,
    "silu": 17,
    "erf": 18,
    "gelu": 20,
    "pow": 1,  # a square
    "softmax": 14,
    "log_softmax": 14,
    "native_layer_norm": 6,
    "native_batch_norm": 2,
    "batch_norm_no_training": 2,
    "native_batch_norm_legit_no_training": 2,
    "remainder": 8,
    "var": 3,
    "sum": 1,
    "mean": 1,
    "amax": 1,
    "amin": 1,
}
