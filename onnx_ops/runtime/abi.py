"""ONNX Runtime's C interface: facts only. Source: onnxruntime_c_api.h; offsets measured on 1.20.1 and 1.31.1.

`OrtApi` is a table of function pointers that only ever grows at its end, so an offset never changes.
"""

import ctypes as C

from ..operator import MAX_INPUTS

API_VERSION = 17  # the table's oldest version that has everything below but NEWER: ONNX Runtime 1.17
OP_VERSION = 17  # of the struct OrtCustomOp below

# Byte offsets into OrtApi, 64-bit. Unless noted, each returns an OrtStatus*: NULL is success.
OFFSETS = {
    "CreateStatus": 0,  # (OrtErrorCode, char*) -> OrtStatus*
    "GetErrorMessage": 16,  # (OrtStatus*) -> char*
    "CreateCustomOpDomain": 208,  # (char* domain, OrtCustomOpDomain** out)
    "CustomOpDomain_Add": 216,  # (OrtCustomOpDomain*, OrtCustomOp*)
    "AddCustomOpDomain": 224,  # (OrtSessionOptions*, OrtCustomOpDomain*)
    "GetTensorMutableData": 408,  # (OrtValue*, void** out)
    "FillStringTensor": 416,  # (OrtValue*, char** strings, size_t count)
    "GetStringTensorDataLength": 424,  # (OrtValue*, size_t* out): bytes of all strings
    "GetStringTensorContent": 432,  # (OrtValue*, void* out, size_t bytes, size_t* offsets, size_t count)
    "CastTypeInfoToTensorInfo": 440,  # (OrtTypeInfo*, OrtTensorTypeAndShapeInfo** out), borrowed
    "CreateTensorTypeAndShapeInfo": 456,  # (OrtTensorTypeAndShapeInfo** out)
    "SetTensorElementType": 464,  # (OrtTensorTypeAndShapeInfo*, enum)
    "SetDimensions": 472,  # (OrtTensorTypeAndShapeInfo*, int64_t* dims, size_t count)
    "GetTensorElementType": 480,  # (OrtTensorTypeAndShapeInfo*, enum* out)
    "GetDimensionsCount": 488,  # (OrtTensorTypeAndShapeInfo*, size_t* out)
    "GetDimensions": 496,  # (OrtTensorTypeAndShapeInfo*, int64_t* out, size_t count)
    "GetSymbolicDimensions": 504,  # (OrtTensorTypeAndShapeInfo*, char** out, size_t count), borrowed; "" if none
    "GetTensorTypeAndShape": 520,  # (OrtValue*, OrtTensorTypeAndShapeInfo** out)
    "KernelInfoGetAttribute_int64": 688,  # (OrtKernelInfo*, char* name, int64_t* out)
    "KernelInfoGetAttribute_string": 696,  # (OrtKernelInfo*, char* name, char* out, size_t* size)
    "KernelContext_GetInput": 720,  # (OrtKernelContext*, size_t index, OrtValue** out)
    "KernelContext_GetOutput": 728,  # (OrtKernelContext*, size_t index, int64_t* dims, size_t rank, OrtValue** out)
    "ReleaseStatus": 744,  # (OrtStatus*) -> void
    "ReleaseTypeInfo": 784,  # (OrtTypeInfo*) -> void
    "ReleaseTensorTypeAndShapeInfo": 792,  # (OrtTensorTypeAndShapeInfo*) -> void
    "ReleaseCustomOpDomain": 808,  # (OrtCustomOpDomain*) -> void
    "AddSessionConfigEntry": 1040,  # (OrtSessionOptions*, char* key, char* value)
    "KernelInfoGetAttributeArray_int64": 1304,  # (OrtKernelInfo*, char* name, int64_t* out, size_t* size)
    "KernelInfo_GetInputTypeInfo": 1872,  # (OrtKernelInfo*, size_t index, OrtTypeInfo** out)
    "HasSessionConfigEntry": 1896,  # (OrtSessionOptions*, char* key, int* out)
    "KernelInfo_GetNodeName": 1952,  # (OrtKernelInfo*, char* out, size_t* size)
    "KernelInfoGetConstantInput_tensor": 1992,  # (OrtKernelInfo*, size_t index, int* constant, OrtValue** out)
    "ShapeInferContext_GetInputTypeShape": 2144,  # (ctx*, size_t index, OrtTensorTypeAndShapeInfo** out), borrowed
    "ShapeInferContext_SetOutputTypeShape": 2160,  # (ctx*, size_t index, OrtTensorTypeAndShapeInfo*)
    "SetSymbolicDimensions": 2168,  # (OrtTensorTypeAndShapeInfo*, char** names, size_t count)
    # (OrtKernelContext*, void (*fn)(void*, size_t), size_t total, size_t num_batch, void*); num_batch 0: ORT decides
    "KernelContext_ParallelFor": 2192,
    # (OrtValue*, enum* out, int64_t** shape out, size_t* rank out), borrowed
    "GetTensorElementTypeAndShapeDataReference": 3312,
}
NEWER = {"GetTensorElementTypeAndShapeDataReference": 24}  # the table's version that has them first

FAIL, INVALID_ARGUMENT = 1, 2  # OrtErrorCode


class OrtCustomOp(C.Structure):
    """One operator for one combination of element types: a version and a table of callbacks."""

    _fields_ = [("version", C.c_uint32)] + [
        (name, C.c_void_p)
        for name in (
            "CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount GetOutputType "
            "GetOutputTypeCount KernelCompute KernelDestroy GetInputCharacteristic GetOutputCharacteristic "
            "GetInputMemoryType GetVariadicInputMinArity GetVariadicInputHomogeneity GetVariadicOutputMinArity "
            "GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2 InferOutputShapeFn GetStartVersion "
            "GetEndVersion GetMayInplace ReleaseMayInplace GetAliasMap ReleaseAliasMap"
        ).split()
    ]


class CustomOp(OrtCustomOp):
    """The same with what its callbacks in trampoline.c tell of it."""

    _fields_ = [
        ("name", C.c_char_p), ("inputs", C.c_size_t), ("types", C.c_int * MAX_INPUTS), ("output", C.c_int),
        ("first_version", C.c_int),
    ]  # fmt: skip


class Error(Exception):
    """An OrtStatus that says failure, with its message."""


class Api:
    """OrtApi's functions from Python: `api.Name(ctypes values...)`; a failing status becomes an `Error`."""

    def __init__(self, base, version=None):
        """`base`: address of the OrtApiBase that ONNX Runtime hands to RegisterCustomOps.

        version  of the table; by default the newest that both sides know: ONNX Runtime 1.x has those up to x, and
                 prints a complaint when it is asked for another
        """
        get_api, get_version = C.cast(base, C.POINTER(C.c_void_p))[:2]
        newest = int(C.CFUNCTYPE(C.c_char_p)(get_version)().split(b".")[1])
        self.version = version or min(newest, max(NEWER.values()))
        self.table = C.CFUNCTYPE(C.c_void_p, C.c_uint32)(get_api)(self.version)
        if not self.table or self.version < (version or API_VERSION):
            raise Error(f"onnx_ops needs ONNX Runtime 1.{API_VERSION} or newer")

    def address(self, name):
        """Of the function; 0 where this ONNX Runtime doesn't have it."""
        if self.version < NEWER.get(name, 0):
            return 0
        return C.cast(self.table + OFFSETS[name], C.POINTER(C.c_void_p))[0]

    def raw(self, name, *args):
        """Call without looking at the result. Arguments are ctypes values, bytes, None, or integers (as pointers)."""
        types = [type(a) if isinstance(a, (C._SimpleCData, C.Array)) else C.c_void_p for a in args]
        return C.CFUNCTYPE(C.c_void_p, *types)(self.address(name))(*args)

    def __getattr__(self, name):
        def call(*args):
            if status := self.raw(name, *args):
                message = C.cast(self.raw("GetErrorMessage", status), C.c_char_p).value.decode(errors="replace")
                self.raw("ReleaseStatus", status)
                raise Error(message)

        return call

    def status(self, code, message):
        """A failing OrtStatus*, for a callback to return."""
        return self.raw("CreateStatus", C.c_int(code), C.c_char_p(message.encode(errors="replace")))

    def get(self, name, *args, kind=C.c_void_p):
        """The value of the function's last parameter, an `out` pointer to a `kind`."""
        out = kind()
        getattr(self, name)(*args, C.byref(out))
        return out.value

    def dimensions(self, info):
        """Of an OrtTensorTypeAndShapeInfo*: integers, or names, or None where unknown."""
        rank = self.get("GetDimensionsCount", info, kind=C.c_size_t)
        sizes, names = (C.c_int64 * max(rank, 1))(), (C.c_char_p * max(rank, 1))()
        self.GetDimensions(info, sizes, C.c_size_t(rank))
        self.GetSymbolicDimensions(info, names, C.c_size_t(rank))
        known = zip(list(sizes)[:rank], list(names)[:rank], strict=True)
        return [size if size >= 0 else (name or b"").decode() or None for size, name in known]
