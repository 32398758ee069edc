"""ATen operators whose meaning is a line of text: what every door of PyTorch's shares.

Names lack the prefix `aten.`. `torch_ops` makes functions of them for captured graphs, the recorder
of `tilevm.fuse` reads them as they are; both have more rows for operators that need more than text.
"""

from __future__ import annotations

# Operator of the table -> ATen operators of the same meaning, one tensor argument.
UNARY = {
    "abs": "abs absolute", "neg": "neg negative", "sign": "sign sgn", "relu": "relu",
    "logical_not": "logical_not", "bitwise_not": "bitwise_not",
    "exp": "exp", "exp2": "exp2 special_exp2", "expm1": "expm1 special_expm1",
    "log": "log", "log2": "log2", "log1p": "log1p special_log1p",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "reciprocal",
    "sin": "sin", "cos": "cos", "tan": "tan", "tanh": "tanh",
    "sigmoid": "sigmoid special_expit", "erf": "erf special_erf", "silu": "silu",
    "floor": "floor", "ceil": "ceil", "round": "round special_round", "trunc": "trunc fix",
    "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite",
}  # fmt: skip

# Operator of the table -> ATen packets whose overloads take two tensors or numbers.
BINARY = {
    "mul": "mul multiply", "floor_div": "floor_divide", "remainder": "remainder", "fmod": "fmod",
    "maximum": "maximum max.other", "minimum": "minimum min.other", "atan2": "atan2 arctan2",
    "copysign": "copysign",
    "eq": "eq", "ne": "ne not_equal", "lt": "lt less", "le": "le less_equal", "gt": "gt greater",
    "ge": "ge greater_equal",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "bitwise_and": "bitwise_and __and__", "bitwise_or": "bitwise_or __or__",
    "bitwise_xor": "bitwise_xor __xor__",
    "shift_left": "bitwise_left_shift __lshift__",
    "shift_right": "bitwise_right_shift __rshift__",
}  # fmt: skip
# Of those and of TEXT, what PyTorch has of floats alone, or computes otherwise of integers.
FLOATS = (
    "silu", "hardsigmoid", "hardswish", "leaky_relu", "mish", "threshold", "addcdiv", "elu",
    "softplus", "hardshrink", "addcmul", "frac",
)  # fmt: skip
# Of other rows, those whose kernels take floats alone, or no bools, though PyTorch's metadata say
# nothing of that: left to PyTorch, which raises.
FLOATS_ALONE = frozenset(
    "gelu glu hypot logaddexp logaddexp2 log_sigmoid log_sigmoid_forward max_pool1d celu var std "
    "var_mean std_mean binary_cross_entropy_with_logits".split()
)
NO_BOOLS = frozenset("abs absolute argmax argmin median topk trace addcmul mvlgamma".split())
OVERLOADS = ("default", "Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor", "Tensor_Tensor")

# `p = mul y, z; r = add x, p`: the last name is the result; x, y, z, w are the arguments in the
# order of the schema, numbers are Python's. `scale a, b` is a * b, or a where b is the number 1.
TEXT = {
    "add.Tensor add.Scalar": "s = scale y, z; r = add x, s",
    "sub.Tensor sub.Scalar": "s = scale y, z; r = sub x, s",
    "rsub.Tensor rsub.Scalar": "s = scale x, z; r = sub y, s",
    "div.Tensor div.Scalar": "r = div x, y",
    "where.self": "r = where x, y, z",
    "clamp_min clamp_min.Tensor": "r = maximum x, y",
    "clamp_max clamp_max.Tensor": "r = minimum x, y",
    "hardsigmoid": "s = add x, 3; m = maximum s, 0; c = minimum m, 6; r = div c, 6",
    "hardswish": "s = add x, 3; m = maximum s, 0; c = minimum m, 6; d = div c, 6; r = mul x, d",
    "leaky_relu": "p = gt x, 0; n = mul x, y; r = where p, x, n",
    "mish": "e = exp x; l = log1p e; t = tanh l; r = mul x, t",
    "threshold": "p = le x, y; r = where p, z, x",
    "elu": "i = scale x, w; e = expm1 i; a = scale e, y; n = scale a, z; p = scale x, z; "
    "c = le x, 0; r = where c, n, p",
    "softplus": "i = scale x, y; e = exp i; l = log1p e; d = div l, y; c = gt i, z; "
    "r = where c, x, d",
    "hardshrink": "a = abs x; c = le a, y; r = where c, 0, x",
    "frac": "t = trunc x; r = sub x, t",
    "fmax": "n = isnan y; m = maximum x, y; a = where n, x, m; k = isnan x; r = where k, y, a",
    "fmin": "n = isnan y; m = minimum x, y; a = where n, x, m; k = isnan x; r = where k, y, a",
    "signbit": "s = copysign 1, x; r = lt s, 0",
    "addcmul": "p = mul y, z; q = scale p, w; r = add x, q",
    "addcdiv": "p = div y, z; q = scale p, w; r = add x, q",
    "tanh_backward": "q = mul y, y; d = sub 1, q; r = mul x, d",
    "sigmoid_backward": "d = sub 1, y; e = mul x, d; r = mul e, y",
    "threshold_backward": "p = le y, z; r = where p, 0, x",
    "silu_backward": "s = sigmoid y; d = sub 1, s; m = mul y, d; e = add 1, m; "
    "g = mul x, s; r = mul g, e",
}
