"""Operations that cannot fail once the shapes and types of their inputs are known to fit, whatever values they are given.

The skeleton checks shapes and types, so such an operation need not run if nobody reads what it gives, and an update of a variable need not wait until it has
run. All others may raise because of a value (an index out of range, a label, a division of integers by zero), which must be seen, and must leave the
variables as they were. Running out of memory is not considered: on a CPU that ends the process.
"""

from terra.graph.trace import CONST

_ELEMENTWISE = """
    Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BiasAdd BiasAddGrad BiasAddV1 Bitcast Cast Ceil ClipByValue Cos Cosh Digamma DivNoNan Elu
    EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor Greater GreaterEqual Identity Inv InvGrad IsFinite IsInf IsNan L2Loss LeakyRelu LeakyReluGrad Less
    LessEqual Lgamma Log Log1p LogSoftmax LogicalAnd LogicalNot LogicalOr Maximum Minimum Mul MulNoNan Ndtri Neg NextAfter NotEqual OnesLike PreventGradient
    RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rint Round Rsqrt RsqrtGrad Select SelectV2 Selu SeluGrad Shape Sigmoid SigmoidGrad Sign Sin
    Sinh Softmax SoftmaxCrossEntropyWithLogits Softplus SoftplusGrad Softsign SoftsignGrad Sqrt SqrtGrad Square SquaredDifference StopGradient Sub Tan
    Tanh TanhGrad Xdivy Xlog1py Xlogy ZerosLike
"""
_WHOLE = """
    AvgPool AvgPoolGrad BatchMatMul BatchMatMulV2 BatchMatMulV3 Conv2D Conv2DBackpropFilter Conv2DBackpropInput DepthwiseConv2dNative
    DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Einsum FusedBatchNormGradV3 FusedBatchNormV3 MatMul MaxPool MaxPoolGrad Pack
    Squeeze StatelessRandomGetKeyCounter Unpack Where
"""
# Whose inputs of these numbers decide about shapes or places, and must be constants to be known to fit.
_WITH_CONSTANTS = {
    "All": (1,), "Any": (1,), "AvgPoolGrad": (0,), "BroadcastTo": (1,), "ConcatV2": (-1,), "Conv2DBackpropFilter": (1,),
    "Conv2DBackpropInput": (0,), "Cumsum": (1,), "DepthwiseConv2dNativeBackpropFilter": (1,), "DepthwiseConv2dNativeBackpropInput": (0,), "ExpandDims": (1,),
    "Fill": (0,), "Max": (1,), "Mean": (1,), "Min": (1,), "OneHot": (1,), "Pad": (1,), "PadV2": (1,), "Prod": (1,), "Reshape": (1,),
    "ReverseV2": (1,), "Slice": (1, 2), "Split": (0,), "SplitV": (1, 2), "StatelessRandomNormalV2": (0, 3), "StatelessRandomUniformV2": (0, 3),
    "StatelessTruncatedNormalV2": (0, 3), "StridedSlice": (1, 2, 3), "StridedSliceGrad": (0, 1, 2, 3), "Sum": (1,), "Tile": (1,), "Transpose": (1,),
}
CANNOT_FAIL = frozenset(_ELEMENTWISE.split()) | frozenset(_WHOLE.split())  # whatever their inputs are
_NEEDS_SHAPE = frozenset([*_WHOLE.split(), "Bitcast"])  # of these, only where the shape of a single input is known, too
ON_INTEGERS = frozenset(["Div", "FloorDiv", "FloorMod", "Mod", "Pow", "TruncateDiv", "TruncateMod"])  # divide by zero, or refuse negative powers


def may_not_fit(op_type, n_inputs):
    """Returns whether an operation may fail because the shape of one of its inputs is not known."""
    return n_inputs > 1 or op_type in _NEEDS_SHAPE


def is_harmless(op_type, kinds, of_floats=False):
    """Returns whether an operation cannot fail, given `kinds` of its inputs (the `kinds` of its trace event). The shapes of all of them must be known.

    of_floats: whether its first input is of a type of floating-point numbers.
    """
    if op_type in ON_INTEGERS:
        return of_floats or kinds[1][0] == CONST  # which has been good for it once
    places = _WITH_CONSTANTS.get(op_type)
    if places is None:
        return op_type in CANNOT_FAIL
    return all(kinds[k][0] == CONST for k in places)
