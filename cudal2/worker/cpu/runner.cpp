// Hosts one candidate inside the jail: loads its shared object, then calls it on the parent's buffers when told.
//
//   runner KERNEL.so LOADING.bpf RUNNING.bpf COMMAND_FD REPLY_FD INPUTS_FD OUTPUTS_FD WORKSPACE_FD M N K
//
// No code of the candidate runs before the filter RUNNING is on: the parent has renamed the tags of its constructors
// (elf.py), which are called here then.
//
// The parent owns the memory, the clock and the judgement. A candidate shares this process and can therefore say
// anything on the reply pipe; nothing the parent concludes rests on a reply being true (see session.py). What a kernel's
// functions are called, and how, comes with the compiler's command line: CONTRACT_… of contract.py.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <utility>

namespace {

// Mirrors arena.py: the inputs file starts with this header, then the table of calls, then the guard ranges.
// A call has as many places as there are operands, the last of which is the output.
struct Header { uint64_t calls, guards, operands; };
struct Guard { uint64_t file, offset, length; };

// Mirrors session.py.
struct Command { uint32_t first, count; };
struct Reply { uint32_t kind; int32_t code; uint64_t detail; };
enum : uint32_t { DONE, READY, NOT_LOADED, NO_SYMBOL, RETURNED_ERROR, SIGNALLED, FORBIDDEN, TERMINATED };

constexpr int COMMAND_FD = 100, REPLY_FD = 101;
constexpr ElfW(Sxword) WITHHELD = 0x60010000;  // mirrors elf.py
constexpr size_t WORKSPACE = 4096;  // where it begins in its file, behind a page that nobody may touch (candidate.py)

struct Region { char* base; size_t size; };
Region regions[3];  // inputs, outputs, workspace

void reply(uint32_t kind, int32_t code = 0, uint64_t detail = 0) {
    const Reply message{kind, code, detail};
    if (write(REPLY_FD, &message, sizeof message) != sizeof message) _exit(3);
}

// Which of the parent's regions an address lies in (1-based), 0 for none: a fault there is out of bounds.
uint64_t region_of(const void* address) {
    for (int i = 0; i < 3; ++i) {
        const char* at = static_cast<const char*>(address);
        if (at >= regions[i].base && at < regions[i].base + regions[i].size) return i + 1;
    }
    return 0;
}

// abort() sends itself SIGABRT by a system call that is not allowed: the third argument is the number of the signal.
bool aborts(const siginfo_t* info, const void* context) {
    return info->si_syscall == SYS_tgkill &&
           static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RDX] == SIGABRT;
}

void on_signal(int number, siginfo_t* info, void* context) {
    if (number == SIGSYS && aborts(info, context)) reply(SIGNALLED, SIGABRT);
    else if (number == SIGSYS) reply(FORBIDDEN, info->si_syscall);
    else reply(SIGNALLED, number, region_of(info->si_addr));
    _exit(4);
}

// What nobody caught, by its place in session.py's EXCEPTIONS; 0 where std::terminate was called for another reason.
void on_terminate() {
    uint64_t what = 0;
    if (const auto thrown = std::current_exception()) try { std::rethrow_exception(thrown); }
        catch (const std::bad_alloc&) { what = 1; }
        catch (const std::out_of_range&) { what = 2; }
        catch (const std::length_error&) { what = 3; }
        catch (const std::invalid_argument&) { what = 4; }
        catch (const std::runtime_error&) { what = 5; }
        catch (const std::exception&) { what = 6; }
        catch (...) { what = 7; }
    reply(TERMINATED, 0, what);
    _exit(4);
}

Region map(int fd, int protection, int flags) {
    struct stat status {};
    if (fstat(fd, &status)) _exit(5);
    const size_t size = status.st_size;
    void* base = mmap(nullptr, size, protection, MAP_SHARED | flags, fd, 0);
    if (base == MAP_FAILED) _exit(6);
    close(fd);
    return {static_cast<char*>(base), size};
}

// The kernel, called with as many addresses as there are operands.
using Call = int (*)(void* kernel, char* const* operands, int M, int N, int K, char* workspace);

template <size_t>
using Address = void*;

template <size_t... Is>
int call(void* kernel, char* const* operands, int M, int N, int K, char* workspace, std::index_sequence<Is...>) {
    using Kernel = int (*)(Address<Is>..., int, int, int, void*);
    return reinterpret_cast<Kernel>(kernel)(operands[Is]..., M, N, K, workspace);
}

template <size_t operands>
int call_of(void* kernel, char* const* given, int M, int N, int K, char* workspace) {
    return call(kernel, given, M, N, K, workspace, std::make_index_sequence<operands>());
}

constexpr size_t MOST = 8;
constexpr Call BY_COUNT[MOST + 1] = {nullptr, nullptr, nullptr, call_of<3>, call_of<4>, call_of<5>, call_of<6>,
                                     call_of<7>, call_of<8>};

struct Program { sock_filter code[256]; sock_fprog header; };

void read_program(const char* path, Program& program) {
    FILE* file = fopen(path, "rb");
    if (!file) _exit(7);
    const size_t count = fread(program.code, sizeof(sock_filter), 256, file);
    fclose(file);
    program.header = {static_cast<unsigned short>(count), program.code};
}

void install(const Program& program) {
    // TSYNC: should a library of the system have started a thread, it gets the filter as well.
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program.header)) _exit(8);
}

// From here on the only file that can be opened is the candidate's own, lest it load a vendor's library.
// What compilers link of themselves is there already. Where the kernel has no Landlock, all of /usr stays readable.
void leave_only(const char* path) {
    for (const char* name : {"libgomp.so.1", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1"}) dlopen(name, RTLD_NOW);
    constexpr uint64_t EXECUTE = 1 << 0, READ_FILE = 1 << 2, READ_DIR = 1 << 3;
    constexpr int CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446, PATH_BENEATH = 1;
    const uint64_t handled = EXECUTE | READ_FILE | READ_DIR;
    const int rules = syscall(CREATE_RULESET, &handled, sizeof handled, 0);
    if (rules < 0) return;
    struct __attribute__((packed)) { uint64_t allowed; int32_t file; } rule;
    rule = {EXECUTE | READ_FILE, open(path, O_PATH | O_CLOEXEC)};
    if (rule.file < 0 || syscall(ADD_RULE, rules, PATH_BENEATH, &rule, 0) || syscall(RESTRICT_SELF, rules, 0)) _exit(9);
    close(rule.file);
    close(rules);
}

// The constructors of the candidate, as the loader would call them: DT_INIT, then each of DT_INIT_ARRAY.
void construct(void* library, int argc, char** argv) {
    const link_map* map = nullptr;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map)) _exit(10);
    ElfW(Addr) initial = 0, array = 0, size = 0;
    for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
        if (entry->d_tag == WITHHELD + DT_INIT) initial = map->l_addr + entry->d_un.d_ptr;
        if (entry->d_tag == WITHHELD + DT_INIT_ARRAY) array = map->l_addr + entry->d_un.d_ptr;
        if (entry->d_tag == WITHHELD + DT_INIT_ARRAYSZ) size = entry->d_un.d_val;
    }
    using Constructor = void (*)(int, char**, char**);
    if (initial) reinterpret_cast<Constructor>(initial)(argc, argv, environ);
    for (size_t i = 0; array && i < size / sizeof(Constructor); ++i)
        reinterpret_cast<const Constructor*>(array)[i](argc, argv, environ);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 12) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Program loading, running;
    read_program(argv[2], loading);
    read_program(argv[3], running);
    // Out of the way first: a parent with many open files hands over numbers that the two pipes are to have.
    int files[5];
    for (int i = 0; i < 5; ++i) {
        files[i] = fcntl(atoi(argv[4 + i]), F_DUPFD, REPLY_FD + 1);
        if (files[i] < 0) return 2;
    }
    for (int i = 0; i < 5; ++i) close(atoi(argv[4 + i]));
    if (dup2(files[0], COMMAND_FD) < 0 || dup2(files[1], REPLY_FD) < 0) return 2;
    close(files[0]);
    close(files[1]);
    regions[0] = map(files[2], PROT_READ, MAP_POPULATE);
    regions[1] = map(files[3], PROT_READ | PROT_WRITE, MAP_POPULATE);
    regions[2] = map(files[4], PROT_READ | PROT_WRITE, 0);
    const int M = atoi(argv[9]), N = atoi(argv[10]), K = atoi(argv[11]);

    const Header header = *reinterpret_cast<const Header*>(regions[0].base);
    const uint64_t* places = reinterpret_cast<const uint64_t*>(regions[0].base + sizeof(Header));
    const Guard* guards = reinterpret_cast<const Guard*>(places + header.calls * header.operands);
    if (header.operands > MOST || !BY_COUNT[header.operands]) return 2;
    const Call invoke = BY_COUNT[header.operands];
    for (uint64_t i = 0; i < header.guards; ++i)
        if (mprotect(regions[guards[i].file].base + guards[i].offset, guards[i].length, PROT_NONE)) return 2;
    if (mprotect(regions[2].base, WORKSPACE, PROT_NONE)) return 2;

    static char alternate[1 << 16];
    const stack_t stack{alternate, 0, sizeof alternate};
    sigaltstack(&stack, nullptr);
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS}) sigaction(number, &action, nullptr);

    std::set_terminate(on_terminate);

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;
    leave_only(argv[1]);
    install(loading);
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    using Workspace = size_t (*)(int, int, int);
    install(running);
    if (library) construct(library, argc, argv);
    void* const hgemm = library ? dlsym(library, CONTRACT_ENTRY) : nullptr;
    const auto workspace = library ? reinterpret_cast<Workspace>(dlsym(library, CONTRACT_SIZER)) : nullptr;
    if (!hgemm) {
        reply(library ? NO_SYMBOL : NOT_LOADED);
        return 0;
    }
    reply(READY, 0, workspace ? workspace(M, N, K) : 0);

    Command command;
    while (read(COMMAND_FD, &command, sizeof command) == sizeof command) {
        int code = 0;
        for (uint32_t i = command.first; i < command.first + command.count && !code; ++i) {
            char* given[MOST];
            for (uint64_t each = 0; each < header.operands; ++each)
                given[each] = regions[each + 1 == header.operands].base + places[i * header.operands + each];
            code = invoke(hgemm, given, M, N, K, regions[2].base + WORKSPACE);
            // What a call wrote is seen before the next one reads: changes.py concludes from one on the other.
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
        }
        code ? reply(RETURNED_ERROR, code) : reply(DONE);
    }
    _exit(0);  // no destructors: they are the candidate's code
}
