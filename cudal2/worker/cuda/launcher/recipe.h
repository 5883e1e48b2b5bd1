// A kernel's launches at any addresses, for one number of rows or several: a recipe (recipe.py) with its cubin loaded in
// the current context.
#pragma once
#include <map>
#include <memory>
#include <mutex>

#include "replay.h"

// What a recipe's file says behind its head. Throws std::exception where that is damaged.
struct Contents {
    uint64_t workspace;     // bytes asked for
    uint32_t operands = 3;  // of each call; the workspace comes behind them
    std::map<uint32_t, uint32_t> rows;  // M -> plan; empty where there is one plan, which is for one M
    struct Relocation {
        uint32_t node, parameter, byte, of;
    };
    std::vector<std::vector<Relocation>> relocations;  // of each plan
    Reader plans;

    Contents(Reader in, int format) : workspace(in.take<uint64_t>()), plans(in) {
        uint32_t count = 1;
        if (format == 2) {
            operands = in.take<uint32_t>();
            for (uint32_t left = in.count(); left; --left) {
                const auto m = in.take<uint32_t>();
                rows[m] = in.take<uint32_t>();
            }
            count = in.count();
            if (operands < 3 || operands > 64) throw std::runtime_error("an impossible number of operands");
        }
        for (const auto& row : rows)
            if (row.second >= count) throw std::runtime_error("a launch of no plan");
        if (format == 2 && rows.empty()) throw std::runtime_error("no launches");
        relocations.resize(count);
        for (auto& those : relocations)
            for (uint32_t left = in.count(); left; --left) those.push_back(in.take<Relocation>());
        plans = in;
    }
};

class Recipe {
public:
    Recipe(const Contents& from, const char* cubin) : operands(from.operands), rows(from.rows) {
        Reader in = from.plans;
        plans = read_plans(in, cubin, 0);
        if (plans.plans.size() != from.relocations.size()) throw std::runtime_error("a recipe of other plans");
        words.resize(plans.plans.size());
        for (size_t plan = 0; plan < words.size(); ++plan) {
            for (const auto& one : from.relocations[plan]) words[plan].push_back(word(one, plans.plans[plan]));
            for (const auto& node : plans.plans[plan]) workspace = workspace || !node.is_kernel;
        }
    }
    Recipe(const Recipe&) = delete;  // words point into plans

    // Whether anything of a call is told where the workspace lies.
    bool touches_workspace() const { return workspace; }

    // Enqueues the call for M rows at these addresses: the operands, then the workspace. Several threads may; the driver
    // has copied the parameters when this returns.
    void launch(const CUdeviceptr* at, uint32_t m, CUstream stream) {
        const uint32_t plan = rows.empty() ? 0 : rows.at(m);
        const std::lock_guard<std::mutex> one_at_a_time(mutex);
        for (const auto& word : words[plan]) {
            const uint64_t value = at[word.of] + word.constant;
            memcpy(word.where, &value, sizeof value);
        }
        for (const auto& node : plans.plans[plan]) {
            if (node.is_kernel) {
                ::launch(node, stream);
            } else {
                Node moved = node;
                moved.address += at[operands];
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
    Word word(const Contents::Relocation& one, Plan& plan) {
        auto& parameter = plan.at(one.node).parameters.at(one.parameter);
        Word found = {nullptr, 0, one.of};
        if (one.of > operands || parameter.size() < sizeof found.constant ||
            one.byte > parameter.size() - sizeof found.constant)
            throw std::runtime_error("a relocation lies outside its parameter");
        found.where = parameter.data() + one.byte;
        memcpy(&found.constant, found.where, sizeof found.constant);
        workspace = workspace || one.of == operands;
        return found;
    }

    uint32_t operands;
    std::map<uint32_t, uint32_t> rows;
    Plans plans = {};
    std::vector<std::vector<Word>> words;  // of each plan
    bool workspace = false;
    std::mutex mutex;
};
