// Debian's libasmjit.a is compiled for executables (-fPIE, not -fPIC): its one reference to data of
// another library, `stderr` in asmjit's debug output, cannot be linked into a Python module. The
// linker's --wrap=stderr (CMakeLists.txt) sends that reference here.
#include <cstdio>

extern "C" {
extern std::FILE* __real_stderr;
extern std::FILE* __wrap_stderr;
std::FILE* __wrap_stderr;
}

// Before anything else that is static and may write there.
__attribute__((constructor(101))) static void set_stderr() { __wrap_stderr = __real_stderr; }
