/* A program that is not Python: it runs a model by ONNX Runtime's C interface, with a library of custom operators.
 *
 *     host LIBONNXRUNTIME OPERATORS MODEL OUTPUT INPUT...
 *
 * INPUT is NAME:TYPE:DIMENSIONS:FILE, as in x:1:1,9,9:x.bin, with the number of the element type and the file of the
 * elements. The first output's elements are written to the file OUTPUT. Variables: HOST_DOMAIN names a domain to
 * register beside ai.onnx, HOST_THREADS the session's number of threads, HOST_SESSIONS how many sessions are made, one
 * after the other. With HOST_OTHER_THREAD, another thread first announces an operator of its own, at no address, which
 * this thread's registration must not see. */
#include "ort.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32 /* ONNX Runtime's paths have wide characters there; the words of this program are in UTF-8 */
#define INT WINDOWS_INT
#define FLOAT WINDOWS_FLOAT
#include <windows.h>
#undef INT
#undef FLOAT
typedef wchar_t path_char;
static path_char *path_of(const char *text) {
    path_char *path = calloc(4096, sizeof *path);
    MultiByteToWideChar(CP_UTF8, 0, text, -1, path, 4095);
    return path;
}
static void *function_of(const char *library, const char *name) {
    HMODULE loaded = LoadLibraryW(path_of(library));
    return loaded ? (void *)GetProcAddress(loaded, name) : 0;
}
static FILE *opened(const char *path, const char *mode) { return _wfopen(path_of(path), path_of(mode)); }
static DWORD WINAPI begin(void *work) { return ((void (*)(void))work)(), 0; }
static void in_another_thread(void (*work)(void)) {
    WaitForSingleObject(CreateThread(0, 0, begin, (void *)work, 0, 0), INFINITE);
}
#else
#include <dlfcn.h>
#include <pthread.h>
typedef char path_char;
static const path_char *path_of(const char *text) { return text; }
static void *function_of(const char *library, const char *name) {
    void *loaded = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    return loaded ? dlsym(loaded, name) : 0;
}
static FILE *opened(const char *path, const char *mode) { return fopen(path, mode); }
static void *begin(void *work) { return ((void (*)(void))work)(), (void *)0; }
static void in_another_thread(void (*work)(void)) {
    pthread_t thread;
    if (!pthread_create(&thread, 0, begin, (void *)work)) pthread_join(thread, 0);
}
#endif

void *const *api;

#define GetErrorMessage ((const char *(*)(status))api[16 / 8])
#define CreateEnv API(24, int level, const char *name, void **out)
#define CreateSession API(56, void *env, const path_char *path, void *options, void **out)
#define Run                                                                                                            \
    API(72, void *session, void *options, const char *const *names, void *const *inputs, size_t count,                 \
        const char *const *outputs, size_t output_count, void **out)
#define CreateSessionOptions API(80, void **out)
#define SetIntraOpNumThreads API(192, void *options, int count)
#define SessionGetOutputName API(296, void *session, size_t index, void *allocator, char **out)
#define CreateTensorWithData                                                                                           \
    API(392, void *info, void *data, size_t bytes, const int64_t *shape, size_t rank, int type, void **out)
#define GetTensorShapeElementCount API(512, void *info, size_t *out)
#define CreateCpuMemoryInfo API(552, int allocator, int memory, void **out)
#define ReleaseSession ((void (*)(void *session))api[760 / 8])
#define ReleaseSessionOptions ((void (*)(void *options))api[800 / 8])
#define RegisterCustomOpsLibrary_V2 API(1824, void *options, const path_char *path)

static const size_t item_size[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 0, 0, 2}; /* by element type */

static void check(status wrong) {
    if (wrong) {
        fprintf(stderr, "%s\n", GetErrorMessage(wrong));
        exit(1);
    }
}

static void *tensor(void *memory, char *described, const char **name) {
    static char content[1 << 24];
    static size_t used;
    int64_t shape[16];
    size_t rank = 0;
    void *value;
    *name = strtok(described, ":");
    int type = atoi(strtok(0, ":"));
    char *dimensions = strtok(0, ":"), *path = strtok(0, "");
    if (path && *dimensions) /* else it is a scalar, and `dimensions` a dash */
        for (char *d = strtok(dimensions, ",-"); d; d = strtok(0, ",-")) shape[rank++] = atoll(d);
    FILE *file = opened(path, "rb");
    size_t bytes = fread(content + used, 1, sizeof content - used, file);
    fclose(file);
    check(CreateTensorWithData(memory, content + used, bytes, shape, rank, type, &value));
    used += (bytes + 63) / 64 * 64;
    return value;
}

static void (*add)(void *const *operators, size_t count);
static void announce(void) { add(0, 1); }

static int run(int count, char **words) {
    void *env, *options, *session, *memory, *allocator, *inputs[16], *output, *info, *data;
    const char *names[16], *domain = getenv("HOST_DOMAIN"), *threads = getenv("HOST_THREADS"),
                           *sessions = getenv("HOST_SESSIONS");
    char *output_name, key[100];
    size_t elements;
    int type;
    struct api_base *(*get_base)(void) = (struct api_base * (*)(void)) function_of(words[1], "OrtGetApiBase");
    if (!get_base) return fprintf(stderr, "%s can't be loaded\n", words[1]), 2;
    api = get_base()->get_api(17);
    check(CreateEnv(4, "host", &env));
    check(CreateCpuMemoryInfo(0, 0, &memory));
    check(GetAllocatorWithDefaultOptions(&allocator));
    if (getenv("HOST_OTHER_THREAD")) {
        add = (void (*)(void *const *, size_t))function_of(words[2], "onnx_ops_add");
        in_another_thread(announce);
    }
    for (int k = 5; k < count; k++) inputs[k - 5] = tensor(memory, words[k], &names[k - 5]);
    for (int k = sessions ? atoi(sessions) : 1; k > 0; k--) {
        check(CreateSessionOptions(&options));
        if (threads) check(SetIntraOpNumThreads(options, atoi(threads)));
        if (domain) {
            check(AddSessionConfigEntry(options, "onnx_ops.register.ai.onnx", "1"));
            snprintf(key, sizeof key, "onnx_ops.register.%s", domain);
            check(AddSessionConfigEntry(options, key, "1"));
        }
        check(RegisterCustomOpsLibrary_V2(options, path_of(words[2])));
        check(CreateSession(env, path_of(words[3]), options, &session));
        check(SessionGetOutputName(session, 0, allocator, &output_name));
        output = 0;
        check(Run(session, 0, names, inputs, (size_t)count - 5, (const char *const *)&output_name, 1, &output));
        ReleaseSessionOptions(options);
        if (k > 1) ((void (*)(void *))api[768 / 8])(output); /* ReleaseValue */
        ReleaseSession(session);
    }
    check(GetTensorTypeAndShape(output, &info));
    check(GetTensorElementType(info, &type));
    check(GetTensorShapeElementCount(info, &elements));
    check(GetTensorMutableData(output, &data));
    FILE *file = opened(words[4], "wb");
    fwrite(data, item_size[type], elements, file);
    return fclose(file);
}

#ifdef _WIN32
int main(void) {
    int count;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &count);
    char **words = calloc((size_t)count, sizeof *words);
    for (int k = 0; k < count; k++)
        words[k] = calloc(1, 8192), WideCharToMultiByte(CP_UTF8, 0, wide[k], -1, words[k], 8191, 0, 0);
    return run(count, words);
}
#else
int main(int count, char **words) { return run(count, words); }
#endif
