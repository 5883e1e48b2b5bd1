// What a kernel translated by hopper.py calls, compiled once for all of them.
#include "hopper.h"

namespace emu {
bool bfloat = false;
jmp_buf scheduler;
std::vector<std::function<void()>> flights;  // loads on their way
std::vector<Stack> spare;  // stacks of threads that have ended: fresh ones cost more than what runs on them
std::vector<std::shared_ptr<Store>> leaving;  // stores whose shared memory has not been read yet
std::mt19937 rng(1);

// A fiber begins by setcontext and goes on by longjmp: swapcontext would ask the system for the signal mask each time.
[[gnu::noinline]] void yield() {
    if (!_setjmp(self->here)) _longjmp(scheduler, 1);
}
[[gnu::noinline]] void resume() {
    if (_setjmp(scheduler)) return;
    if (self->begun) _longjmp(self->here, 1);
    self->begun = true;
    setcontext(&self->start);
}
void fail(std::string why) {
    if (!failed) report = why;
    failed = true;
    while (true) yield();
}
template <class F> void wait_until(F ready) {
    while (!ready()) yield();
}
Block* ranked(int rank) { return self->block->cluster->blocks.at(rank).get(); }
Block* block_of(uint32_t address) { return address >> 24 ? ranked((address >> 24) - 1) : self->block; }
uint8_t* at(Block* block, uint32_t address, int bytes) {
    if (!block->running) fail("the shared memory of a block that has ended");
    const uint32_t offset = address & 0xFFFFFF;
    if (offset < BASE || offset - BASE + bytes > block->shared.size()) fail("shared memory out of bounds");
    return block->shared.data() + (offset - BASE);
}
uint32_t swizzle(uint32_t address, int kind) {  // 1, 2, 3: rows of 128, 64, 32 bytes
    return address ^ (address >> 3 & (kind == 1 ? 0x70 : kind == 2 ? 0x30 : 0x10));
}
Barrier& barrier(Block* block, uint32_t address) {
    if (!block->running) fail("a barrier of a block that has ended");
    auto found = block->barriers.find(address & 0xFFFFFF);
    if (found == block->barriers.end()) fail("a barrier that was not initialised");
    return found->second;
}
void settle(Barrier& bar) {
    if (bar.pending == 0 && bar.tx == 0) bar.pending = bar.count, bar.phase ^= 1;
    ++progress;
}
void arrive(Barrier& bar) {
    if (bar.pending == 0) fail("more arrivals than the barrier counts");
    --bar.pending;
    settle(bar);
}
void meet(Rendezvous& r, int count, bool stay) {
    const int generation = r.generation;
    ++progress;
    if (++r.arrived == count) r.arrived = 0, ++r.generation;
    if (stay) wait_until([&] { return r.generation != generation; });
}
void mbarrier_init(uint32_t bar, int count) {
    at(self->block, bar, 8);
    if (bar % 8) fail("barrier not aligned");
    self->block->barriers[bar] = Barrier{count, count, 0, 0};
}
void mbarrier_expect(uint32_t bar, int bytes) {
    Barrier& b = barrier(self->block, bar);
    b.tx += bytes;
    arrive(b);
}
void mbarrier_arrive(uint32_t bar) { arrive(barrier(self->block, bar)); }
void mbarrier_arrive_remote(uint32_t bar, int rank) { arrive(barrier(ranked(rank), bar)); }
void mbarrier_try_wait(uint32_t& over, uint32_t bar, int parity) {
    Barrier& b = barrier(self->block, bar);
    if (b.phase == (parity & 1)) yield();
    over = b.phase != (parity & 1);
}
void bar_sync(int id, int count) { meet(self->block->named[id], count, true); }
void bar_arrive(int id, int count) { meet(self->block->named[id], count, false); }
std::map<Thread*, int> cluster_waits;
void cluster_arrive() {
    Cluster& c = *self->block->cluster;
    cluster_waits[self] = c.barrier.generation;
    meet(c.barrier, c.alive, false);
}
void cluster_wait() {
    const int generation = cluster_waits.at(self);
    wait_until([&] { return self->block->cluster->barrier.generation != generation; });
    self->met = true;
}
void cluster_both() { cluster_arrive(), cluster_wait(); }
void load(uint32_t to, const void* map_at, int x, int y, uint32_t bar, int mask) {
    const Map map = *(const Map*)map_at;
    if (to % (map.swizzle == 1 ? 1024 : map.swizzle == 2 ? 512 : 256)) fail("box not aligned to its swizzle");
    for (auto& peer : self->block->cluster->blocks)
        if (Block* block = peer.get(); mask >> block->rank & 1)
            flights.push_back([=] {
                for (uint32_t r = 0; r < map.box[1]; ++r) {
                    astray += (uint64_t)(map.data + ((int64_t)y + r) * (int64_t)map.pitch + (int64_t)x * 2) % 32 != 0;
                    for (uint32_t c = 0; c < map.box[0]; ++c) {
                        const int64_t row = (int64_t)y + r, column = (int64_t)x + c;
                        uint16_t value = 0;
                        if (row < (int64_t)map.size[1] && column < (int64_t)map.size[0] && row >= 0 && column >= 0)
                            memcpy(&value, map.data + row * map.pitch + column * 2, 2);
                        memcpy(at(block, swizzle(to + (r * map.box[0] + c) * 2, map.swizzle), 2), &value, 2);
                    }
                }
                Barrier& b = barrier(block, bar);
                b.tx -= map.box[0] * map.box[1] * 2;
                settle(b);
            });
}
void load_own(uint32_t to, const void* map, int x, int y, uint32_t bar) { load(to, map, x, y, bar, 1 << self->block->rank); }
// Consecutive bytes to the same place in each of these blocks.
void bulk(uint32_t to, const void* from, int bytes, uint32_t bar, int mask) {
    if (bytes <= 0 || bytes % 16 || to % 16 || (uintptr_t)from % 16) fail("a bulk copy of no whole 16 bytes");
    for (auto& peer : self->block->cluster->blocks)
        if (Block* block = peer.get(); mask >> block->rank & 1)
            flights.push_back([=] {
                memcpy(at(block, to, bytes), from, bytes);
                Barrier& b = barrier(block, bar);
                b.tx -= bytes;
                settle(b);
            });
}
void bulk_own(uint32_t to, const void* from, int bytes, uint32_t bar) { bulk(to, from, bytes, bar, 1 << self->block->rank); }
void unfenced() { fail("shared memory read by the async proxy without a proxy fence"); }
void proxy_fence() {
    self->staged.clear();
    if (self->copied) self->copied = false, --self->block->copied;
}
void store(const void* map_at, int x, int y, uint32_t from) {
    const Map& map = *(const Map*)map_at;
    const uint32_t end = from + map.box[0] * map.box[1] * 2;
    for (auto& thread : self->block->cluster->threads) {
        const auto first = thread->staged.lower_bound(from);
        if (thread->block == self->block && first != thread->staged.end() && *first < end) unfenced();
    }
    auto s = std::make_shared<Store>(Store{*(const Map*)map_at, self->block, from, x, y, false});
    self->open_stores.push_back(s);
    leaving.push_back(s);
}
void finish_store(Store& s) {
    for (uint32_t r = 0; r < s.map.box[1]; ++r)
        for (uint32_t c = 0; c < s.map.box[0]; ++c) {
            const uint64_t row = s.y + r, column = s.x + c;
            if (row < s.map.size[1] && column < s.map.size[0])
                memcpy((char*)s.map.data + row * s.map.pitch + column * 2, at(s.block, swizzle(s.from + (r * s.map.box[0] + c) * 2, 1), 2), 2);
        }
    s.read = true;
    ++progress;
}
void store_commit() { self->store_groups.push_back(std::move(self->open_stores)), self->open_stores.clear(); }
void store_wait(int left) {
    auto& groups = self->store_groups;
    wait_until([&] {
        for (size_t g = 0; g + left < groups.size(); ++g)
            for (auto& s : groups[g])
                if (!s->read) return false;
        return true;
    });
}
float half_at(uint32_t address, int kind) {
    uint16_t bits;
    memcpy(&bits, at(self->block, swizzle(address, kind), 2), 2);
    return number_of(bits, bfloat);
}
void compute(Product& p) {
    if (self->block->copied) unfenced();
    const int lane = self->index % 32, first = self->index / 32 % 4 * 16 + lane / 4;
    const auto field = [](uint64_t d, int from) { return (uint32_t)(d >> from & 0x3FFF) << 4; };
    const int kind_a = p.a >> 62, kind_b = p.b >> 62;
    float a[2][16];
    for (int h = 0; h < 2; ++h)
        for (int k = 0; k < 16; ++k) {
            const int r = first + 8 * h;
            a[h][k] = half_at(field(p.a, 0) + r % 8 * 128 + r / 8 * field(p.a, 32) + k * 2, kind_a);
        }
    const int wide = kind_b == 1 ? 64 : kind_b == 2 ? 32 : 16;
    for (int j = 0; j < p.n / 8; ++j)
        for (int c = 0; c < 2; ++c) {
            const int n = 8 * j + lane % 4 * 2 + c;
            float sum[2] = {};
            for (int k = 0; k < 16; ++k) {
                const uint32_t from = p.transposed
                    ? field(p.b, 0) + n % wide * 2 + n / wide * field(p.b, 16) + k % 8 * wide * 2 + k / 8 * field(p.b, 32)
                    : field(p.b, 0) + n % 8 * 128 + n / 8 * field(p.b, 32) + k * 2;
                const float b = half_at(from, kind_b);
                sum[0] += a[0][k] * b, sum[1] += a[1][k] * b;
            }
            for (int h = 0; h < 2; ++h)
                if (p.f.size()) {
                    float& d = *p.f[4 * j + 2 * h + c];
                    d = (p.add ? d : 0) + sum[h];
                } else {
                    _Float16* d = (_Float16*)p.h[2 * j + h] + c;
                    *d = (_Float16)((p.add ? (float)*d : 0) + sum[h]);
                }
        }
}
[[gnu::noinline]] void collect(Product& p, float& d) { p.f.push_back(&d); }
[[gnu::noinline]] void collect(Product& p, uint32_t& d) { p.h.push_back(&d); }
void multiply(Product p) { self->open.push_back(std::move(p)); }
Rendezvous& warp_meeting() { return self->block->warps[self->index / 32]; }
void syncwarp() { meet(warp_meeting(), 32, true); }
void wgmma_commit() { self->groups.push_back(std::move(self->open)), self->open.clear(); }
void wgmma_wait(int left) {
    auto& groups = self->groups;
    for (size_t g = 0; g + left < groups.size(); ++g)
        for (Product& p : groups[g]) compute(p);
    if ((int)groups.size() > left) groups.erase(groups.begin(), groups.end() - left);
    syncwarp();  // .sync.aligned: the warp goes on as one
}
uint32_t* lane_words(int lane) { return &self->block->exchange[(self->index / 32 * 32 + lane) * WORDS]; }
// `rows` writes the sixteen bytes of this lane's row of its matrix, from all lanes' words.
static void stored(uint32_t to, const uint32_t (&words)[4], void (*rows)(uint16_t*, int)) {
    const int lane = self->index % 32;
    memcpy(lane_words(lane), words, sizeof words);
    lane_words(lane)[4] = to;
    syncwarp();
    // Eight rows of 16 bytes are written at once: together they must touch every bank.
    for (int other = lane / 8 * 8; other < lane / 8 * 8 + 8; ++other)
        if (other != lane && lane_words(other)[4] / 16 % 8 == to / 16 % 8) fail("stmatrix rows share banks");
    self->staged.insert(to);
    rows((uint16_t*)at(self->block, to, 16), lane);
    syncwarp();
}
void stmatrix(uint32_t to, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    stored(to, {r0, r1, r2, r3}, [](uint16_t* row, int lane) {
        for (int i = 0; i < 4; ++i) memcpy(row + 2 * i, lane_words(lane % 8 * 4 + i) + lane / 8, 4);
    });
}
void stmatrix_trans(uint32_t to, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    stored(to, {r0, r1, r2, r3}, [](uint16_t* row, int lane) {
        for (int i = 0; i < 8; ++i) row[i] = lane_words(4 * i + lane % 8 / 2)[lane / 8] >> 16 * (lane % 2);
    });
}
void movmatrix(uint32_t& d, uint32_t a) {
    const int lane = self->index % 32, row = lane / 4, from = lane % 4 * 2;
    *lane_words(lane) = a;
    syncwarp();
    uint32_t both = 0;
    for (int i = 0; i < 2; ++i) both |= (*lane_words((from + i) * 4 + row / 2) >> 16 * (row % 2) & 0xFFFF) << 16 * i;
    syncwarp();
    d = both;
}
void ld4(float& x, float& y, float& z, float& w, uint32_t from) {
    float v[4];
    memcpy(v, at(block_of(from), from, 16), 16);
    x = v[0], y = v[1], z = v[2], w = v[3];
}
void ld4_words(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, uint32_t from) {
    uint32_t v[4];
    memcpy(v, at(self->block, from, 16), 16);
    x = v[0], y = v[1], z = v[2], w = v[3];
}
void st4(uint32_t to, float x, float y, float z, float w) {
    const float v[4] = {x, y, z, w};
    memcpy(at(block_of(to), to, 16), v, 16);
}
void st_async(uint32_t to, uint32_t bar, int rank, int mine, float x, float y, float z, float w) {
    if (mine) return st4(to, x, y, z, w);
    Block* block = ranked(rank);
    if (!self->met) fail("sent to a block that may not have started");
    barrier(block, bar);  // in place before anything is sent, or the bytes are lost
    if (to % 16) fail("16 bytes not aligned");
    const std::array<float, 4> v{x, y, z, w};
    flights.push_back([=] {
        memcpy(at(block, to, 16), v.data(), 16);
        Barrier& b = barrier(block, bar);
        b.tx -= 16;
        settle(b);
    });
}
void ld16_if(uint32_t valid, uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, const void* from) {
    if (!valid) return;
    if ((uintptr_t)from % 16) fail("16 bytes not aligned");
    uint32_t v[4];
    memcpy(v, from, 16);
    x = v[0], y = v[1], z = v[2], w = v[3];
}
// Sums lane / 4 + 8 * h, 2 * (lane % 4) + c of the product of 16×16 and 16×8 halves.
void mma(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const int lane = self->index % 32;
    const uint32_t mine[WORDS] = {a0, a1, a2, a3, b0, b1};
    memcpy(lane_words(lane), mine, sizeof mine);
    syncwarp();
    const auto half_of = [](uint32_t word, int which) {
        return number_of(word >> 16 * which, bfloat);
    };
    float* d[4] = {&d0, &d1, &d2, &d3};
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 16; ++k) {
            const float a = half_of(lane_words(lane / 4 * 4 + k % 8 / 2)[k / 8 * 2 + e / 2], k % 2);
            *d[e] += a * half_of(lane_words((lane % 4 * 2 + e % 2) * 4 + k % 8 / 2)[4 + k / 8], k % 2);
        }
    syncwarp();
}
void copy16(uint32_t to, const void* from, int bytes) {
    if (bytes && (uintptr_t)from % 16) fail("16 bytes not aligned");
    Block* block = self->block;
    self->open_copies.push_back([=] {
        uint8_t value[16] = {};
        memcpy(value, from, bytes);
        memcpy(at(block, to, 16), value, 16);
    });
}
void copy_commit() { self->copies.push_back(std::move(self->open_copies)), self->open_copies.clear(); }
void copy_wait(int left) {
    auto& groups = self->copies;
    for (size_t g = 0; g + left < groups.size(); ++g)
        for (auto& copy : groups[g]) {
            copy();
            if (!self->copied) self->copied = true, ++self->block->copied;
        }
    if ((int)groups.size() > left) groups.erase(groups.begin(), groups.end() - left);
}
void load_acquire(int& value, const int* from) {
    yield();
    value = *from;
}
void add_release(int* to, int value) { *to += value, ++progress; }
void store_release(int* to, int value) { *to = value, ++progress; }
void* dynamic_shared() { return (void*)(uintptr_t)BASE; }
uint64_t& variable(int line) { return self->block->variables[line]; }
std::function<void()>* body;
void trampoline() {
    (*body)();
    for (auto& s : self->store_groups)
        for (auto& store : s)
            if (!store->read) fail("a thread ended before its stores had been read");
    self->done = true;
    Cluster& c = *self->block->cluster;
    --c.alive, --self->block->running;
    // Threads that have ended count as arrived.
    if (c.barrier.arrived && c.barrier.arrived == c.alive) c.barrier.arrived = 0, ++c.barrier.generation;
    ++progress;
    _longjmp(scheduler, 1);
}
std::unique_ptr<Cluster> start(int first, int threads, size_t shared, int size) {
    auto c = std::make_unique<Cluster>();
    c->alive = size * threads;
    for (int rank = 0; rank < size; ++rank) {
        c->blocks.push_back(std::make_unique<Block>());
        Block* b = c->blocks.back().get();
        b->cluster = c.get(), b->index = first + rank, b->rank = rank;
        b->threads = b->running = threads;
        b->shared.assign(shared, 0xFF);  // NaN
        b->exchange.resize(threads * WORDS);
        for (int t = 0; t < threads; ++t) {
            c->threads.push_back(std::make_unique<Thread>());
            Thread* thread = c->threads.back().get();
            thread->index = t, thread->block = b;
            if (spare.empty()) spare.emplace_back(new char[STACK]);
            thread->stack = std::move(spare.back()), spare.pop_back();
            getcontext(&thread->start);
            thread->start.uc_stack.ss_sp = thread->stack.get();
            thread->start.uc_stack.ss_size = STACK;
            makecontext(&thread->start, trampoline, 0);
        }
    }
    return c;
}
int launch(unsigned grid, int threads, size_t shared, int cluster_size, std::function<void()> kernel) {
    if (shared > 232448) return report = "too much shared memory", 1;
    if (grid % cluster_size) return report = "the grid is no multiple of the cluster", 1;
    grid_size = grid, body = &kernel;
    flights.clear(), leaving.clear(), cluster_waits.clear();
    std::vector<std::unique_ptr<Cluster>> clusters;
    unsigned started = 0;
    for (long idle = 0; !failed;) {
        // Clusters start in order, each as soon as one before it makes room.
        std::vector<Cluster*> resident;
        for (auto& c : clusters)
            if (c->alive) resident.push_back(c.get());
        while (started < grid && (int)resident.size() < processors) {
            clusters.push_back(start(started, threads, shared, cluster_size));
            resident.push_back(clusters.back().get());
            started += cluster_size;
        }
        if (resident.empty()) break;
        const long before = progress;
        std::shuffle(resident.begin(), resident.end(), rng);
        for (Cluster* c : resident) {
            const size_t first = rng() % c->threads.size();
            for (size_t i = 0; i < c->threads.size() && !failed; ++i) {
                self = c->threads[(first + i) % c->threads.size()].get();
                if (!self->done) resume();
            }
            if (!c->alive)
                for (auto& t : c->threads) spare.push_back(std::move(t->stack));
        }
        size_t kept = 0;
        for (size_t f = 0; f < flights.size() && !failed; ++f)
            if (rng() % 2) flights[f]();
            else std::swap(flights[kept++], flights[f]);
        if (!failed) flights.resize(kept);
        for (size_t s = 0; s < leaving.size() && !failed;)
            if (rng() % 3 == 0) {
                finish_store(*leaving[s]);
                leaving.erase(leaving.begin() + s);
            } else {
                ++s;
            }
        idle = progress == before ? idle + 1 : 0;
        if (idle > 200) failed = true, report = "every thread waits for another";
    }
    if (!failed && flights.size()) failed = true, report = "a block ended before its loads had come in";
    return failed;
}
// A cooperative launch: all blocks at once, or none.
int launch_together(unsigned grid, int threads, size_t shared, std::function<void()> kernel) {
    if (grid > (unsigned)processors) return report = "not all blocks of a cooperative launch fit", 720;
    return launch(grid, threads, shared, 1, kernel);
}
}  // namespace emu

extern "C" long emulator_astray() { return emu::astray; }
extern "C" const char* emulator_report() { return emu::report.c_str(); }
extern "C" void emulator_reset(int seed, int processors) {
    emu::astray = 0;
    emu::rng.seed(seed), emu::failed = false, emu::report.clear(), emu::processors = processors;
}
