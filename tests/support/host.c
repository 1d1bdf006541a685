/* A program that is not Python: it runs a model by ONNX Runtime's C interface, with a library of custom operators.
 *
 *     host LIBONNXRUNTIME OPERATORS MODEL OUTPUT INPUT...
 *
 * INPUT is NAME:TYPE:DIMENSIONS:FILE, as in x:1:1,9,9:x.bin, with the number of the element type and the file of the
 * elements. The output's elements, float32, are written to the file OUTPUT. */
#include "ort.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *const *api;

#define GetErrorMessage ((const char *(*)(status))api[16 / 8])
#define CreateEnv API(24, int level, const char *name, void **out)
#define CreateSession API(56, void *env, const char *path, void *options, void **out)
#define Run                                                                                                            \
    API(72, void *session, void *options, const char *const *names, void *const *inputs, size_t count,                 \
        const char *const *outputs, size_t output_count, void **out)
#define CreateSessionOptions API(80, void **out)
#define RegisterCustomOpsLibrary API(232, void *options, const char *path, void **handle)
#define SessionGetOutputName API(296, void *session, size_t index, void *allocator, char **out)
#define CreateTensorWithData                                                                                           \
    API(392, void *info, void *data, size_t bytes, const int64_t *shape, size_t rank, int type, void **out)
#define CreateCpuMemoryInfo API(552, int allocator, int memory, void **out)
#define GetAllocatorWithDefaultOptions API(624, void **out)
#define GetTensorShapeElementCount API(512, void *info, size_t *out)

static void check(status wrong) {
    if (wrong) {
        fprintf(stderr, "%s\n", GetErrorMessage(wrong));
        exit(1);
    }
}

static void *tensor(void *memory, char *described, const char **name) {
    static char content[1 << 20];
    static size_t used;
    int64_t shape[16];
    size_t rank = 0;
    void *value;
    *name = strtok(described, ":");
    int type = atoi(strtok(0, ":"));
    char *dimensions = strtok(0, ":"), *path = strtok(0, ":");
    for (char *d = strtok(dimensions, ","); d; d = strtok(0, ",")) shape[rank++] = atoll(d);
    FILE *file = fopen(path, "rb");
    size_t bytes = fread(content + used, 1, sizeof content - used, file);
    fclose(file);
    check(CreateTensorWithData(memory, content + used, bytes, shape, rank, type, &value));
    used += (bytes + 63) / 64 * 64;
    return value;
}

int main(int count, char **words) {
    void *env, *options, *session, *memory, *allocator, *handle, *inputs[8], *output = 0, *info, *data;
    const char *names[8];
    char *output_name;
    size_t elements;
    void *runtime = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
    if (!runtime) return fprintf(stderr, "%s\n", dlerror()), 2;
    struct api_base *(*get_base)(void) = (struct api_base * (*)(void)) dlsym(runtime, "OrtGetApiBase");
    api = get_base()->get_api(17);
    check(CreateEnv(4, "host", &env));
    check(CreateSessionOptions(&options));
    check(RegisterCustomOpsLibrary(options, words[2], &handle));
    check(CreateSession(env, words[3], options, &session));
    check(CreateCpuMemoryInfo(0, 0, &memory));
    check(GetAllocatorWithDefaultOptions(&allocator));
    check(SessionGetOutputName(session, 0, allocator, &output_name));
    for (int k = 5; k < count; k++) inputs[k - 5] = tensor(memory, words[k], &names[k - 5]);
    check(Run(session, 0, names, inputs, (size_t)count - 5, (const char *const *)&output_name, 1, &output));
    check(GetTensorTypeAndShape(output, &info));
    check(GetTensorShapeElementCount(info, &elements));
    check(GetTensorMutableData(output, &data));
    FILE *file = fopen(words[4], "wb");
    fwrite(data, 4, elements, file);
    return fclose(file);
}
