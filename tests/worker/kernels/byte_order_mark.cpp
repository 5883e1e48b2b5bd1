#include <iostream>
// expect: rejected
// reason: #include <iostream> is not allowed
// A byte order mark stands before the directive.
extern "C" int hgemm(const _Float16* A, const _Float16* B, _Float16* C, int M, int N, int K, void* workspace) { return !std::cout; }
