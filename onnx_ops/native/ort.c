/* ONNX Runtime's interface: its functions, statuses, tensors and outputs. */
#include "ort.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *const *api;
unsigned api_version;

/* Take ONNX Runtime's functions when it first calls the library. Returns whether it is new enough. */
int take_api(const struct api_base *base) {
    const char *dot = strchr(base->get_version(), '.');
    unsigned version = dot ? (unsigned)strtoul(dot + 1, 0, 10) : 0; /* 1.x has the versions of the table up to x */
    if (version > WITH_DATA_REFERENCE) version = WITH_DATA_REFERENCE;
    if (!api) api_version = version, api = base->get_api(version < OLDEST ? 1 : version);
    make_spare_statuses();
    return version >= OLDEST;
}

/* Without memory CreateStatus returns 0, which would mean success. Then an error is reported by a spare status. */
enum { SPARES = 16 };
static _Atomic(status) spares[SPARES];

/* Make the spare statuses that are lacking, as far as there is memory. */
void make_spare_statuses(void) {
    for (size_t k = 0; k < SPARES; k++) {
        status none = 0, made = 0;
        if (!atomic_load(&spares[k])) made = CreateStatus(FAIL, "onnx_ops: no room for an error message");
        if (made && !atomic_compare_exchange_strong(&spares[k], &none, made)) ReleaseStatus(made);
    }
}

/* A status, which is never 0. Without one, the process ends: ONNX Runtime would go on with wrong results. */
status new_status(int code, const char *message) {
    status made = CreateStatus(code, message);
    for (size_t k = 0; k < SPARES && !made; k++) made = atomic_exchange(&spares[k], 0);
    if (made) return made;
    fprintf(stderr, "%s\nonnx_ops: no room to report this error\n", message);
    abort();
}

status refused(const struct text *text) { return new_status(INVALID_ARGUMENT, text->at); }
status failed(const char *message) { return new_status(FAIL, message); }

/* The outcome of a call that makes a thing, which was 0 before: without memory for a status, ONNX Runtime reports
 * success where it has made none. */
status made(status error, void *const *thing) {
    return error || *thing ? error : failed("onnx_ops: ONNX Runtime has no room for what it was asked for");
}

/* The length of a text from ONNX Runtime, which counts the 0 at its end. */
size_t without_end(const char *text, size_t size) { return size && !text[size - 1] ? size - 1 : size; }

/* Read a tensor's type and shape. `shape` points into ONNX Runtime's memory or, with older versions, to `copy`, which
 * has no shape of more than MAX_RANK axes. */
status read_tensor(const void *value, int *type, size_t *rank, int64_t copy[MAX_RANK], const int64_t **shape) {
    void *info = 0;
    if (api_version >= WITH_DATA_REFERENCE) return GetTensorElementTypeAndShapeDataReference(value, type, shape, rank);
    status error = made(GetTensorTypeAndShape(value, &info), &info);
    if (error) return error;
    error = GetTensorElementType(info, type);
    if (!error) error = GetDimensionsCount(info, rank);
    if (!error && *rank <= MAX_RANK) error = GetDimensions(info, copy, *rank);
    ReleaseTensorTypeAndShapeInfo(info);
    *shape = copy;
    return error;
}

/* Have ONNX Runtime allocate output k, of this shape. */
status get_output(void *context, size_t k, const struct tensor *output, void **value) {
    *value = 0;
    return made(KernelContext_GetOutput(context, k, output->shape, (size_t)output->rank, value), value);
}
