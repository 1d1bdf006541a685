/* What keeps the library in the process: ONNX Runtime unloads it with its last session, which would lose what it has
 * allocated. This file includes no other header of the library, whose names Windows' own headers take. */
#if defined _WIN32
#include <windows.h>
#elif defined __APPLE__
#include <dlfcn.h>
#endif

/* Have the system never unload the library. Returns whether it does so. On Linux a flag for the linker has said it. */
int stays(void) {
#if defined _WIN32
    HMODULE library;
    return GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN, (LPCSTR)stays,
                              &library);
#elif defined __APPLE__
    Dl_info library;
    return dladdr((const void *)stays, &library) && dlopen(library.dli_fname, RTLD_NOW);
#else
    return 1;
#endif
}
