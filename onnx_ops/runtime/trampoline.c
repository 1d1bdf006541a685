/* What options.register_custom_ops_library() loads. Everything behind it is Python (native.py), which does not run where
 * nobody has imported it, and where an interrupt such as Ctrl-C may raise an exception at any instruction. None may cross
 * a C callback: Python's functions catch what they can, and ctypes drops one that leaves them all the same, before their
 * first line or after their last. So each of them writes its status, NULL for success, to where it was UNFINISHED.
 *
 * What was interrupted counts as done here: Python raises the exception where the call of ONNX Runtime returns. That a
 * call has failed it would not notice so early. */
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#define OF_THREAD __declspec(thread)
#else
#define EXPORT __attribute__((visibility("default")))
#define OF_THREAD __thread
#endif
#define UNFINISHED ((void *)1)
typedef void *(*create_status)(int code, const char *message); /* the first function of OrtApi, in every version */
struct api_base { const create_status *(*get_api)(unsigned version); };
EXPORT struct { /* what native.py fills in: its functions, the compiled compute, and PyErr_SetInterrupt */
    void (*hook)(void *options, const struct api_base *base, void **status);
    void (*create_kernel)(const void *op, const void *info, void **kernel, void **status);
    void (*infer)(const void *op, void *context, void **status);
    void (*slow)(const void *state, void *context, long long needed, void **status);
    void *(*compute)(const void *state, void *context);
    void (*interrupt)(void);
} python;
static const create_status *api;
static OF_THREAD int waiting; /* for Python to raise what interrupted it: until then it is not called */

EXPORT void wait_for_interrupt(int wait) { waiting = wait; }

static void *failure(const char *message) { return (*api)(1, message); }

static void *done(void *status) {
    if (status != UNFINISHED) return status;
    python.interrupt();
    return 0;
}

EXPORT void *RegisterCustomOps(void *options, const struct api_base *base) {
    void *status = UNFINISHED;
    api = base->get_api(1);
    if (!python.hook)
        return failure("onnx_ops must be imported in this process, and its get_library_path() called, before the library "
                       "is registered: its operators are Python's");
    if (!waiting) python.hook(options, base, &status);
    return done(status);
}

EXPORT void *create_kernel(const void *op, const void *unused, const void *info, void **kernel) {
    void *status = UNFINISHED;
    (void)unused;
    *kernel = 0;
    if (!waiting) python.create_kernel(op, info, kernel, &status);
    return done(status);
}

EXPORT void *infer(const void *op, void *context) {
    void *status = UNFINISHED;
    if (!waiting) python.infer(op, context, &status);
    return done(status);
}

EXPORT void *compute(const void *state, void *context) {
    return state ? python.compute(state, context) : failure("onnx_ops: its session was not made to run");
}

EXPORT void *slow(const void *state, void *context, long long needed) {
    void *status = UNFINISHED;
    python.slow(state, context, needed, &status);
    return status == UNFINISHED ? done(status), failure("onnx_ops: interrupted") : status; /* there is no output */
}

EXPORT void *PyInit_trampoline(void) { return 0; } /* never imported; some linkers insist on it */
