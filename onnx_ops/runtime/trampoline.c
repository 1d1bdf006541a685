/* What options.register_custom_ops_library() loads: everything behind it is Python (native.py). */
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
typedef void *(*hook_type)(void *session_options, const void *api_base);
static hook_type hook;
EXPORT void set_hook(hook_type f) { hook = f; }
EXPORT void *RegisterCustomOps(void *options, const void *api) { return hook ? hook(options, api) : 0; }
EXPORT void *PyInit_trampoline(void) { return 0; } /* never imported; some linkers insist on it */
