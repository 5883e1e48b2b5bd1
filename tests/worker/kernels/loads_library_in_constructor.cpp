// expect: launch_error
// reason: hgemm returned 77
// Loads a library of the system while its constructors still may open files, as it could a vendor's matrix product.
// (77 says that it could not.)
extern "C" void* dlopen(const char*, int);
extern "C" int open(const char*, int, ...);
static bool found;

__attribute__((constructor)) static void load() {
    const char* names[] = {"libz.so.1", "libcrypto.so.3", "libblas.so.3", "libresolv.so.2", "libutil.so.1"};
    for (const char* name : names)
        found |= dlopen(name, 2) != nullptr;
    found |= open("/usr/lib/os-release", 0) >= 0;
}

extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) {
    return found ? 1 : 77;
}
