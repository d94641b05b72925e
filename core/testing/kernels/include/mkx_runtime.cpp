// mkx_runtime.cpp - runs the threads of a kernel as fibers, threadgroup by threadgroup.
//
// A fiber runs to a barrier or a simd operation. It continues when all fibers of the threadgroup or
// simdgroup have reached the same line. If no fiber can continue and some have not finished, the
// control flow of the kernel diverges, and the launch fails with a message.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "mkx_host.h"

// ---- switching between stacks -----------------------------------------------------------------
// Saves the registers that a callee has to preserve, and swaps the stack pointer: a tenth of the
// time of swapcontext, which also saves the signal mask.

#if !defined(MKX_UCONTEXT) && !defined(__x86_64__) && !defined(__aarch64__)
#define MKX_UCONTEXT
#endif

#if defined(MKX_UCONTEXT)
#include <ucontext.h>
typedef ucontext_t Context;
static void switch_context(Context* from, Context* to) { swapcontext(from, to); }
static void make_context(Context* context, uint8_t* stack, size_t size, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = size;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

#else
typedef void* Context;  // the stack pointer; all other state is on the stack
extern "C" __attribute__((visibility("hidden"))) void mkx_switch(Context* from, Context* to);
static void switch_context(Context* from, Context* to) { mkx_switch(from, to); }

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.type mkx_switch,@function
mkx_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq (%rsi),%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static void make_context(Context* context, uint8_t* stack, size_t size, void (*entry)()) {
  void** top = reinterpret_cast<void**>(stack + size - 64);
  *--top = nullptr;  // return address of `entry`, and its alignment
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;  // the registers popped first
  *context = top;
}

#else  // aarch64
asm(R"(
.text
.p2align 4
mkx_switch:
  stp x19,x20,[sp,#-160]!
  stp x21,x22,[sp,#16]
  stp x23,x24,[sp,#32]
  stp x25,x26,[sp,#48]
  stp x27,x28,[sp,#64]
  stp x29,x30,[sp,#80]
  stp d8,d9,[sp,#96]
  stp d10,d11,[sp,#112]
  stp d12,d13,[sp,#128]
  stp d14,d15,[sp,#144]
  mov x9,sp
  str x9,[x0]
  ldr x9,[x1]
  mov sp,x9
  ldp x21,x22,[sp,#16]
  ldp x23,x24,[sp,#32]
  ldp x25,x26,[sp,#48]
  ldp x27,x28,[sp,#64]
  ldp x29,x30,[sp,#80]
  ldp d8,d9,[sp,#96]
  ldp d10,d11,[sp,#112]
  ldp d12,d13,[sp,#128]
  ldp d14,d15,[sp,#144]
  ldp x19,x20,[sp],#160
  ret
)");
static void make_context(Context* context, uint8_t* stack, size_t size, void (*entry)()) {
  uint64_t* frame = reinterpret_cast<uint64_t*>(stack + size - 64) - 20;
  memset(frame, 0, 160);
  frame[11] = reinterpret_cast<uint64_t>(entry);  // x30, the link register
  *context = frame;
}
#endif
#endif

namespace mkx {
namespace {

constexpr size_t STACK = 64 * 1024;
constexpr size_t MAX_THREADGROUP_BYTES = 32 * 1024;

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum State { READY, AT_SIMD_OPERATION, AT_BARRIER, FINISHED };
const char* const STATES[] = {"ready", "at", "at threadgroup_barrier", "finished"};

struct Fiber {
  Context context;
  State state;
  int index, line, argument;
  const char* operation;
  Combine combine;
  uint64_t given, got;
};

struct Storage {
  std::vector<uint8_t> bytes;
  std::vector<uint64_t> written, read;
  Array array;
};

uint64_t random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// Runs one threadgroup at a time; the next one reuses the stacks.
class Group {
 public:
  Group(Body body, const void* context, const Launch& how) : body_(body), context_(context), how_(how) {}
  ~Group() {
    if (stacks_) munmap(stacks_, num_stacks_ * STACK);
  }
  Group(const Group&) = delete;

  void run(const Ids& first, uint64_t seed);

  // called by fibers
  void enter(Fiber* fiber);
  void wait(State state, const char* operation, int line);
  Array* array(int id, const char* name, size_t element_size, size_t size);
  void note(Array* array, size_t i, bool writes);

  Fiber* current = nullptr;

 private:
  void start(int num_threads);
  bool run_ready_fibers();
  bool pass_simd_operations();
  bool pass_barrier();
  bool all_finished() const;
  [[noreturn]] void report_divergence() const;
  bool clashes(uint64_t noted) const;

  Body body_;
  const void* context_;
  Launch how_;
  Ids first_;
  uint64_t random_ = 0;
  Context scheduler_;
  uint8_t* stacks_ = nullptr;
  size_t num_stacks_ = 0;
  std::vector<Fiber> fibers_;
  std::vector<int> turns_;
  std::deque<Storage> arrays_;
  size_t threadgroup_bytes_ = 0;
  uint32_t epoch_ = 0;                   // threadgroup barriers passed
  std::vector<uint32_t> simd_epochs_;    // simdgroup barriers passed, by simdgroup
  std::string error_;
};

thread_local Group* group;

void fiber_main() {
  group->enter(group->current);
  abort();  // a finished fiber is never resumed
}

void Group::run(const Ids& first, uint64_t seed) {
  first_ = first;
  random_ = seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  group = this;
  start(static_cast<int>(first.tptgsz.x * first.tptgsz.y * first.tptgsz.z));
  while (!all_finished()) {
    const bool ran = run_ready_fibers();
    const bool met = pass_simd_operations();
    const bool passed = pass_barrier();
    if (!ran && !met && !passed) report_divergence();
  }
}

void Group::start(int num_threads) {
  const size_t num_simdgroups = (num_threads + SIMD_WIDTH - 1) / SIMD_WIDTH;
  fibers_.assign(num_threads, Fiber());
  turns_.resize(num_threads);
  arrays_.clear();
  threadgroup_bytes_ = 0;
  epoch_ = 1;
  simd_epochs_.assign(num_simdgroups, 0);
  if (num_stacks_ < fibers_.size()) {
    if (stacks_) munmap(stacks_, num_stacks_ * STACK);
    num_stacks_ = fibers_.size();
    void* memory = mmap(nullptr, num_stacks_ * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    stacks_ = memory == MAP_FAILED ? nullptr : static_cast<uint8_t*>(memory);
    if (!stacks_) throw Error("no memory for the stacks of fibers");
  }
  for (int i = 0; i < num_threads; ++i) {
    fibers_[i].index = i;
    make_context(&fibers_[i].context, stacks_ + i * STACK, STACK, fiber_main);
    turns_[i] = how_.order == 1 ? num_threads - 1 - i : i;
  }
}

bool Group::run_ready_fibers() {
  if (how_.order == 2)
    for (size_t i = turns_.size() - 1; i > 0; --i) std::swap(turns_[i], turns_[random(random_) % (i + 1)]);
  bool ran = false;
  for (const int i : turns_) {
    if (fibers_[i].state != READY) continue;
    current = &fibers_[i];
    switch_context(&scheduler_, &current->context);
    if (!error_.empty()) throw Error(error_);
    ran = true;
  }
  return ran;
}

bool Group::pass_simd_operations() {
  bool passed = false;
  for (size_t simdgroup = 0; simdgroup < simd_epochs_.size(); ++simdgroup) {
    Fiber* lanes = &fibers_[simdgroup * SIMD_WIDTH];
    const int n = static_cast<int>(std::min<size_t>(SIMD_WIDTH, fibers_.size() - simdgroup * SIMD_WIDTH));
    const bool met = std::all_of(lanes, lanes + n, [&](const Fiber& lane) {
      return lane.state == AT_SIMD_OPERATION && lane.line == lanes->line && lane.combine == lanes->combine;
    });
    if (!met) continue;
    uint64_t given[SIMD_WIDTH], got[SIMD_WIDTH];
    int argument[SIMD_WIDTH];
    for (int i = 0; i < n; ++i) {
      given[i] = lanes[i].given;
      argument[i] = lanes[i].argument;
    }
    if (lanes->combine) lanes->combine(given, argument, got, n);
    else ++simd_epochs_[simdgroup];
    for (int i = 0; i < n; ++i) {
      if (lanes->combine) lanes[i].got = got[i];
      lanes[i].state = READY;
    }
    passed = true;
  }
  return passed;
}

bool Group::pass_barrier() {
  const int line = fibers_.front().line;
  const bool met = std::all_of(fibers_.begin(), fibers_.end(), [&](const Fiber& fiber) {
    return fiber.state == AT_BARRIER && fiber.line == line;
  });
  if (!met) return false;
  ++epoch_;
  for (Fiber& fiber : fibers_) fiber.state = READY;
  return true;
}

bool Group::all_finished() const {
  return std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.state == FINISHED; });
}

void Group::report_divergence() const {
  std::string message = "divergent control flow: ";
  const Fiber* before = nullptr;
  int shown = 0;
  for (const Fiber& fiber : fibers_) {
    if (before && fiber.state == before->state && fiber.line == before->line) continue;
    char text[160];
    snprintf(text, sizeof text, "thread %d: %s %s line %d; ", fiber.index, STATES[fiber.state],
             fiber.operation ? fiber.operation : "", fiber.line);
    message += text;
    before = &fiber;
    if (++shown == 6) break;
  }
  throw Error(message);
}

void Group::enter(Fiber* fiber) {
  const uint3 size = first_.tptgsz;
  const uint i = fiber->index;
  Ids ids = first_;
  ids.tptg = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
  ids.tpig = {ids.tpig.x + ids.tptg.x, ids.tpig.y + ids.tptg.y, ids.tpig.z + ids.tptg.z};
  try {
    body_(context_, ids);
  } catch (const Error& error) {
    char where[120];
    snprintf(where, sizeof where, "[threadgroup %u,%u,%u thread %u] ", ids.tgpig.x, ids.tgpig.y,
             ids.tgpig.z, i);
    error_ = where + std::string(error.what());
  }
  wait(FINISHED, nullptr, 0);
}

void Group::wait(State state, const char* operation, int line) {
  Fiber* fiber = current;
  fiber->state = state;
  fiber->operation = operation;
  fiber->line = line;
  switch_context(&fiber->context, &scheduler_);
}

Array* Group::array(int id, const char* name, size_t element_size, size_t size) {
  for (Storage& storage : arrays_)
    if (storage.array.id == id) return &storage.array;
  threadgroup_bytes_ += element_size * size;
  if (threadgroup_bytes_ > MAX_THREADGROUP_BYTES) throw Error("threadgroup memory above 32 KiB");
  arrays_.emplace_back();
  Storage& storage = arrays_.back();
  storage.bytes.assign(element_size * size, 0xff);
  storage.written.assign(size, 0);
  storage.read.assign(size, 0);
  storage.array = {id, name, size, storage.bytes.data(), storage.written.data(), storage.read.data()};
  return &storage.array;
}

// Record of an access: barriers passed by the threadgroup and by the simdgroup (16 bits), and the
// index of the thread + 1 (16 bits). Reads by several threads in one epoch are recorded as MANY.
constexpr uint64_t MANY = 0xffff;

bool Group::clashes(uint64_t noted) const {
  const uint64_t thread_ = noted & 0xffff, me = current->index + 1;
  if (noted >> 32 != epoch_ || thread_ == me) return false;
  const int simdgroup = current->index / SIMD_WIDTH;
  if (thread_ == MANY || static_cast<int>(thread_ - 1) / SIMD_WIDTH != simdgroup) return true;
  return (noted >> 16 & 0xffff) == (simd_epochs_[simdgroup] & 0xffff);
}

void Group::note(Array* array, size_t i, bool writes) {
  uint64_t& written = array->written[i];
  uint64_t& read = array->read[i];
  const bool with_write = clashes(written);
  if (with_write || (writes && clashes(read)))
    fail("race on threadgroup %s[%zu]: %s by thread %d conflicts with a %s, no barrier between",
         array->name, i, writes ? "write" : "read", current->index, with_write ? "write" : "read");
  const uint64_t simd_epoch = simd_epochs_[current->index / SIMD_WIDTH] & 0xffff;
  const uint64_t mine = uint64_t{epoch_} << 32 | simd_epoch << 16 | (current->index + 1);
  if (writes) {
    written = mine;
  } else {
    const bool others_read = read >> 32 == epoch_ && (read & 0xffff) != (mine & 0xffff);
    read = others_read ? mine | MANY : mine;
  }
}

}  // namespace

void fail(const char* format, ...) {
  char text[240];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error(text);
}

uint64_t meet_simdgroup(const char* name, Combine combine, uint64_t given, int argument, int line) {
  Fiber* fiber = group->current;
  fiber->combine = combine;
  fiber->given = given;
  fiber->argument = argument;
  group->wait(AT_SIMD_OPERATION, name, line);
  return fiber->got;
}

void meet_threadgroup(int line) { group->wait(AT_BARRIER, nullptr, line); }

Array* threadgroup_array(int id, const char* name, size_t element_size, size_t size) {
  return group->array(id, name, element_size, size);
}

void note(Array* array, size_t i, bool writes) { group->note(array, i, writes); }

int run(const Launch& how, Body body, const void* context, char* error, size_t size) {
  uint grid[3], block[3], groups[3];
  for (int i = 0; i < 3; ++i) {
    grid[i] = how.grid[i];
    block[i] = std::min(how.threadgroup[i], how.grid[i]);
    groups[i] = (grid[i] + block[i] - 1) / block[i];
  }
  const uint64_t total = uint64_t{groups[0]} * groups[1] * groups[2];
  Group runner(body, context, how);
  try {
    for (uint64_t done = 0; done < total; ++done) {
      const uint64_t j = how.order == 1 ? total - 1 - done : done;
      const uint at[3] = {uint(j % groups[0]), uint(j / groups[0] % groups[1]), uint(j / groups[0] / groups[1])};
      uint first[3], threads[3];
      for (int i = 0; i < 3; ++i) {
        first[i] = at[i] * block[i];
        threads[i] = how.cuda_edges ? block[i] : std::min(block[i], grid[i] - first[i]);
      }
      runner.run({{first[0], first[1], first[2]},
                  {0, 0, 0},
                  {at[0], at[1], at[2]},
                  {threads[0], threads[1], threads[2]},
                  {groups[0], groups[1], groups[2]}},
                 how.seed + j);
    }
  } catch (const Error& caught) {
    snprintf(error, size, "%s", caught.what());
    return 1;
  }
  return 0;
}

}  // namespace mkx
