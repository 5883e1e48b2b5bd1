// One kernel's launches at any addresses: a recipe (recipe.py) with its cubin loaded in the current context.
#pragma once
#include <memory>
#include <mutex>

#include "replay.h"

class Recipe {
public:
    enum { A, B, C, WORKSPACE, PLACES };

    // Takes what recipe.pack wrote, behind the bytes of workspace. Throws DriverError, std::exception where it is damaged.
    Recipe(Reader in, const char* cubin) {
        struct Relocation {
            uint32_t node, parameter, byte, of;
        };
        std::vector<Relocation> relocations;
        for (uint32_t left = in.count(); left; --left) relocations.push_back(in.take<Relocation>());
        plans = read_plans(in, cubin, 0);
        if (plans.plans.size() != 1) throw std::runtime_error("a recipe holds one plan");
        for (const auto& one : relocations) {
            auto& parameter = plans.plans[0].at(one.node).parameters.at(one.parameter);
            Word word = {nullptr, 0, one.of};
            if (one.of >= PLACES || parameter.size() < sizeof word.constant ||
                one.byte > parameter.size() - sizeof word.constant)
                throw std::runtime_error("a relocation lies outside its parameter");
            word.where = parameter.data() + one.byte;
            memcpy(&word.constant, word.where, sizeof word.constant);
            words.push_back(word);
            workspace = workspace || one.of == WORKSPACE;
        }
        for (const auto& node : plans.plans[0]) workspace = workspace || !node.is_kernel;
    }
    Recipe(const Recipe&) = delete;  // words point into plans

    // Whether anything of a call is told where the workspace lies.
    bool touches_workspace() const { return workspace; }

    // Enqueues the call. Several threads may; the driver has copied the parameters when this returns.
    void launch(const CUdeviceptr (&at)[PLACES], CUstream stream) {
        const std::lock_guard<std::mutex> one_at_a_time(mutex);
        for (const auto& word : words) {
            const uint64_t value = at[word.of] + word.constant;
            memcpy(word.where, &value, sizeof value);
        }
        for (const auto& node : plans.plans[0]) {
            if (node.is_kernel) {
                ::launch(node, stream);
            } else {
                Node moved = node;
                moved.address += at[WORKSPACE];
                ::launch(moved, stream);
            }
        }
    }

private:
    struct Word {
        char* where;
        uint64_t constant;
        uint32_t of;
    };
    Plans plans = {};
    std::vector<Word> words;
    bool workspace = false;
    std::mutex mutex;
};
