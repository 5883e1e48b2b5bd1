// The kernels of an exported folder by their problem, read when they are first asked for. A part of hgemm.cpp.
#pragma once
#include <dirent.h>
#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <tuple>

namespace {

// The folder above the one that this library was loaded from; empty where that cannot be told. Asked when the library
// is loaded: its name may be relative to a working directory that changes.
std::string find_folder() {
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void*)&cudal2_hgemm, &info) || !info.dli_fname || !realpath(info.dli_fname, path)) return "";
    const std::string file = path, lib = file.substr(0, file.rfind('/'));
    return lib.substr(0, lib.rfind('/'));
}
const std::string folder = find_folder();

// Nothing where there is no such file.
bool read_file(const std::string& path, std::string& content) {
    FILE* file = fopen(path.c_str(), "rb");
    if (!file) return false;
    char part[1 << 16];
    for (size_t count; (count = fread(part, 1, sizeof part, file)) > 0;) content.append(part, count);
    const bool complete = !ferror(file);
    fclose(file);
    return complete;
}

// A kernel's files, read when it is first asked for; null where there is no such recipe.
cudal2_kernel* read_kernel(const std::string& name) {
    static std::mutex mutex;
    static std::map<std::string, std::unique_ptr<cudal2_kernel>> kernels;
    const std::lock_guard<std::mutex> one_at_a_time(mutex);
    auto& kernel = kernels[name];
    std::string recipe, cubin;
    if (!kernel && read_file(folder + "/recipes/" + name, recipe)) {
        const std::string cubin_name = Header(recipe).cubin_name;
        if (cubin_name.find('/') != std::string::npos || !read_file(folder + "/cubins/" + cubin_name, cubin))
            throw Failed(CUDAL2_DAMAGED, "the cubin of " + name + " cannot be read: " + cubin_name);
        kernel = std::make_unique<cudal2_kernel>(std::move(recipe), std::move(cubin));
    }
    return kernel.get();
}

// The kernels of other numbers of rows whose recipe's name ends so: those of more rows first, from few to many, then
// those of fewer, from many to few.
std::vector<std::string> others(int m, const std::string& rest) {
    std::map<std::pair<bool, long>, std::string> found;
    DIR* recipes = opendir((folder + "/recipes").c_str());
    if (!recipes) return {};
    while (const dirent* entry = readdir(recipes)) {
        char* end = nullptr;
        const long rows = strtol(entry->d_name, &end, 10);
        if (rest == end) found[{rows < m, std::labs(rows - m)}] = entry->d_name;
    }
    closedir(recipes);
    std::vector<std::string> names;
    for (auto& one : found) names.push_back(one.second);
    return names;
}

struct Wanted {
    int m, n, k, layout, accumulate;
    std::string kind;  // the end of a problem's name: its dtype and its epilogue, nothing for fp16 and none
    bool operator<(const Wanted& other) const {
        return std::tie(m, n, k, layout, accumulate, kind) <
               std::tie(other.m, other.n, other.k, other.layout, other.accumulate, other.kind);
    }
};

// The kernel of a problem; null where there is none.
cudal2_kernel* find_kernel(const Wanted& problem) {
    static std::shared_mutex mutex;
    static std::map<Wanted, cudal2_kernel*> kernels;
    {
        const std::shared_lock<std::shared_mutex> reading(mutex);
        const auto found = kernels.find(problem);
        if (found != kernels.end()) return found->second;
    }
    const int layout = problem.layout, accumulate = problem.accumulate;
    if (layout < 0 || layout > 1 || accumulate < 0 || accumulate > 1)
        throw Failed(CUDAL2_INVALID, "layout is CUDAL2_NN or CUDAL2_TN, accumulate CUDAL2_F32 or CUDAL2_F16");
    const std::string rest = "_" + std::to_string(problem.n) + "_" + std::to_string(problem.k) +
        (layout == CUDAL2_TN ? "_tn" : "_nn") + (accumulate == CUDAL2_F16 ? "_f16" : "_f32") + problem.kind + ".recipe";
    cudal2_kernel* made = problem.m > 0 ? read_kernel(std::to_string(problem.m) + rest) : nullptr;
    if (!made && problem.m > 0)
        for (const auto& name : others(problem.m, rest)) {
            made = read_kernel(name);
            if (made && made->several() && made->serves(problem.m)) break;
            made = nullptr;
        }
    const std::unique_lock<std::shared_mutex> writing(mutex);
    return kernels.emplace(problem, made).first->second;
}

Wanted wanted(const cudal2_problem& p) {
    std::string dtype = p.dtype ? p.dtype : "fp16", epilogue = p.epilogue ? p.epilogue : "none", kind;
    for (const auto& word : {dtype, epilogue})
        if (word.empty() || word.find_first_of("/.") != std::string::npos)
            throw Failed(CUDAL2_INVALID, "dtype and epilogue are words such as bf16 and bias");
    if (dtype != "fp16" || epilogue != "none") kind = "_" + dtype;
    if (epilogue != "none") kind += "_" + epilogue;
    return {p.M, p.N, p.K, p.layout, p.accumulate, kind};
}

}  // namespace
