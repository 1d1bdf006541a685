#pragma once
/* ONNX Runtime's C interface: a table of functions, to which new versions only append. Source: onnxruntime_c_api.h; the
 * byte offsets were measured on 1.20.1 and 1.31.1. The functions return a status: 0 for success. */
#include "text.h"

typedef void *status;
struct api_base {
    void *const *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
};
extern void *const *api; /* 0 until take_api */
extern unsigned api_version;
#define API_OF(result, offset, ...) ((result (*)(__VA_ARGS__))api[(offset) / 8])
#define API(offset, ...) API_OF(status, offset, __VA_ARGS__)
#define CreateStatus API(0, int code, const char *message)
#define GetErrorCode API_OF(int, 8, const void *status)
#define CreateCustomOpDomain API(208, const char *domain, void **out)
#define CustomOpDomain_Add API(216, void *domain, void *op)
#define AddCustomOpDomain API(224, void *options, void *domain)
#define GetTensorMutableData API(408, void *value, void **out)
#define GetStringTensorDataLength API(424, const void *value, size_t *out)
#define GetStringTensorContent API(432, const void *value, void *out, size_t bytes, size_t *offsets, size_t count)
#define CastTypeInfoToTensorInfo API(440, const void *info, void **out)
#define CreateTensorTypeAndShapeInfo API(456, void **out)
#define SetTensorElementType API(464, void *info, int type)
#define SetDimensions API(472, void *info, const int64_t *dims, size_t count)
#define GetTensorElementType API(480, const void *info, int *out)
#define GetDimensionsCount API(488, const void *info, size_t *out)
#define GetDimensions API(496, const void *info, int64_t *out, size_t count)
#define GetSymbolicDimensions API(504, const void *info, const char **out, size_t count)
#define GetTensorTypeAndShape API(520, const void *value, void **out)
#define GetAllocatorWithDefaultOptions API(624, void **out)
#define KernelInfoGetAttribute_float API(680, const void *info, const char *name, float *out)
#define KernelInfoGetAttribute_int64 API(688, const void *info, const char *name, int64_t *out)
#define KernelInfoGetAttribute_string API(696, const void *info, const char *name, char *out, size_t *size)
#define KernelContext_GetInputCount API(704, const void *context, size_t *out)
#define KernelContext_GetInput API(720, const void *context, size_t index, void **out)
#define KernelContext_GetOutput API(728, void *context, size_t index, const int64_t *dims, size_t rank, void **out)
#define ReleaseStatus API(744, status)
#define ReleaseValue API(768, void *value)
#define ReleaseTypeInfo API(784, void *info)
#define ReleaseTensorTypeAndShapeInfo API(792, void *info)
#define ReleaseCustomOpDomain API(808, void *domain)
#define AddSessionConfigEntry API(1040, void *options, const char *key, const char *value)
#define KernelInfoGetAttributeArray_float API(1296, const void *info, const char *name, float *out, size_t *size)
#define KernelInfoGetAttributeArray_int64 API(1304, const void *info, const char *name, int64_t *out, size_t *size)
#define KernelInfo_GetInputCount API(1840, const void *info, size_t *out)
#define KernelInfo_GetInputName API(1856, const void *info, size_t index, char *out, size_t *size)
#define KernelInfo_GetInputTypeInfo API(1872, const void *info, size_t index, void **out)
#define KernelInfoGetAttribute_tensor API(1888, const void *info, const char *name, void *allocator, void **out)
#define HasSessionConfigEntry API(1896, const void *options, const char *key, int *out)
#define GetSessionConfigEntry API(1904, const void *options, const char *key, char *out, size_t *size)
#define KernelInfo_GetNodeName API(1952, const void *info, char *out, size_t *size)
#define KernelInfoGetConstantInput_tensor API(1992, const void *info, size_t index, int *is_constant, void **out)
#define GetResizedStringTensorElementBuffer API(2016, void *value, size_t index, size_t bytes, char **out)
#define ShapeInferContext_GetInputCount API(2136, const void *context, size_t *out)
#define ShapeInferContext_GetInputTypeShape API(2144, void *context, size_t index, void **out)
#define ShapeInferContext_GetAttribute API(2152, const void *context, const char *name, const void **out)
#define ShapeInferContext_SetOutputTypeShape API(2160, void *context, size_t index, void *info)
#define SetSymbolicDimensions API(2168, void *info, const char **names, size_t count)
#define ReadOpAttr API(2176, const void *attribute, int type, void *out, size_t room, size_t *size)
#define KernelContext_ParallelFor                                                                                      \
    API(2192, const void *context, void (*tile)(void *, size_t), size_t total, size_t batches,                         \
        void *) /* batches 0: ONNX Runtime decides */
#define GetTensorElementTypeAndShapeDataReference                                                                      \
    API(3312, const void *value, int *type, const int64_t **shape, size_t *rank)
enum { OLDEST = 17, WITH_DATA_REFERENCE = 24 }; /* versions of the table: 17 lacks only the last of these */
enum { FAIL = 1, INVALID_ARGUMENT = 2 };        /* error codes of a status */

int take_api(const struct api_base *base);
void make_spare_statuses(void);
status new_status(int code, const char *message);
status refused(const struct text *text);
status failed(const char *message);
status made(status error, void *const *thing);
size_t without_end(const char *text, size_t size);
status read_tensor(const void *value, int *type, size_t *rank, int64_t copy[MAX_RANK], const int64_t **shape);
status get_output(void *context, size_t k, const struct tensor *output, void **value);
