#include <asmjit/core.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/native/emit.h"
#include "exec/native/listing.h"
#include "exec/native/native.h"
#include "exec/native/run.h"
#include "exec/native/symbols.h"

namespace tilevm::exec::native {
namespace {

constexpr std::uint32_t kCodeBlock = 1U << 20;
constexpr int64_t kMostScratch = 8LL << 20;  // where a sweep must be whole

// Memory mapped twice, writable here and executable there (see TILEVM_MAP_TWICE in
// CMakeLists.txt). Never destroyed: threads may run kernels while the process ends.
asmjit::JitRuntime& runtime() {
  static asmjit::JitAllocator::CreateParams params = [] {
    asmjit::JitAllocator::CreateParams p{};
    if (TILEVM_MAP_TWICE) p.options = asmjit::JitAllocatorOptions::kUseDualMapping;
    p.blockSize = kCodeBlock;
    return p;
  }();
  static auto* const instance = new asmjit::JitRuntime(&params);
  return *instance;
}

// Touches half of the first block of code memory in both places, so that first compiles do not wait
// for its pages.
bool prepare_memory() {
  void* executable = nullptr;
  void* writable = nullptr;
  auto* allocator = runtime().allocator();
  if (allocator->alloc(&executable, &writable, kCodeBlock / 2) != asmjit::kErrorOk) return false;
  constexpr std::size_t kPage = 4096;
  for (std::size_t i = 0; i < kCodeBlock / 2; i += kPage) {
    static_cast<volatile char*>(writable)[i] = 0;
    static_cast<void>(static_cast<const volatile char*>(executable)[i]);
  }
  return allocator->release(executable) == asmjit::kErrorOk;
}

// Without memfd_create asmjit would map files of /dev/shm twice, where a full one ends the process
// at the first write.
bool has_memfd() {
  const int file = memfd_create("tilevm", MFD_CLOEXEC);
  return file >= 0 && close(file) == 0;
}

bool memory_allowed() {
  static const bool allowed = (!TILEVM_MAP_TWICE || has_memfd()) && prepare_memory();
  return allowed;
}

std::atomic<int64_t> most_bytes{0};

constexpr const char* kNoMemory = "the system does not let memory be made executable";

// What the assembler cannot encode, it leaves out.
class FirstError final : public asmjit::ErrorHandler {
 public:
  void handleError(asmjit::Error, const char* message, asmjit::BaseEmitter*) override {
    if (message_.empty()) message_ = message;
  }
  void clear() { message_.clear(); }
  void check() const {
    if (!message_.empty()) throw Unsupported{message_};
  }

 private:
  std::string message_;
};

}  // namespace

bool available(Target target) {
  return target == Target::kNone || (memory_allowed() && processor_has(target));
}

Target best() { return *std::find_if(std::rbegin(kTargets), std::rend(kTargets), available); }

const char* why_none() {
  if (best() != Target::kNone) return "";
  return memory_allowed() ? "this processor has no vectors that code is emitted for" : kNoMemory;
}

CodeMemory code_memory() noexcept {
  if (!memory_allowed()) return {};
  const auto stats = runtime().allocator()->statistics();
  return {static_cast<int64_t>(stats.usedSize()), static_cast<int64_t>(stats.reservedSize()),
          most_bytes.load()};
}

void set_code_memory_limit(int64_t bytes) noexcept { most_bytes = bytes; }

const char* name(Target target) {
  switch (target) {
    case Target::kNone:
      return "interp";
    case Target::kAvx2:
      return "avx2";
    case Target::kAvx512:
      return "avx512";
    case Target::kNeon:
      return "neon";
  }
  return "";
}

struct Code::Impl : Emitted {
  ~Impl() {
    if (entry == nullptr) return;
    withdraw(reinterpret_cast<const void*>(entry));
    runtime().release(entry);
  }
};

Code::Code(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Code::~Code() = default;

namespace {

// Emits with as many vectors side by side as the registers suffice for; `begin` is called before
// each try. Returns Impl::kept. Throws Unsupported.
template <class Begin>
int emit_into(asmjit::CodeHolder& holder, bytecode::View program, Target target, bool streams,
              Begin begin) {
  thread_local FirstError error;
  for (int copies = kMaxCopies;; copies /= 2) {
    holder.reset(asmjit::ResetPolicy::kSoft);
    holder.init(runtime().environment());
    error.clear();
    holder.setErrorHandler(&error);
    begin();
    try {
      const int kept = native::emit(target, holder, program, {copies, streams});
      error.check();
      return kept;
    } catch (const Unsupported&) {
      if (copies == 1) throw;
    }
  }
}

}  // namespace

std::unique_ptr<Code> Code::emit(std::span<const std::byte> program, Target target,
                                 std::string* why, bool streams) {
  if (target == Target::kNone || !available(target)) {
    if (why != nullptr) *why = "the processor or the system does not allow it";
    return nullptr;
  }
  const auto view = bytecode::view(program);
  thread_local asmjit::CodeHolder holder;  // keeps its memory
  int kept = 0;
  try {
    kept = emit_into(holder, view, target, streams, [] {});
  } catch (const Unsupported& u) {
    if (why != nullptr) *why = u.what;
    return nullptr;
  }
  auto impl = std::make_unique<Impl>();
  const CodeMemory memory = code_memory();
  if (memory.limit_bytes > 0 &&
      memory.used_bytes + static_cast<int64_t>(holder.codeSize()) > memory.limit_bytes) {
    if (why != nullptr) *why = "memory for machine code is full (tilevm.config.code_memory)";
    return nullptr;
  }
  if (runtime().add(&impl->entry, &holder) != asmjit::kErrorOk) {
    if (why != nullptr) *why = kNoMemory;
    return nullptr;
  }
  impl->size = holder.codeSize();
  impl->operands.assign(view.operands.begin(), view.operands.end());
  impl->fold = view.header->fold;
  impl->streams = streams;
  impl->lanes = lanes(target);
  impl->kept = kept;
  impl->passes = passes_of(view);
  for (int i = 0; i < static_cast<int>(view.operands.size()); ++i) {
    const auto& operand = view.operands[at(i)];
    const bool moves = operand.role == Role::kInput || operand.role == Role::kOutput;
    if (operand.role == Role::kScratch) impl->scratch.push_back(i);
    if (moves && over_x(operand.cls) && operand.contiguous == 0) impl->packed.push_back(i);
  }
  return std::unique_ptr<Code>(new Code(std::move(impl)));
}

std::vector<Line> list(std::span<const std::byte> program, Target target, bool streams) {
  if (target == Target::kNone) return {};
  asmjit::CodeHolder holder;
  std::optional<Listing> listing;
  try {
    emit_into(holder, bytecode::view(program), target, streams, [&] { listing.emplace(holder); });
  } catch (const Unsupported&) {
    return {};
  }
  return listing->take();
}

std::span<const std::byte> Code::machine_code() const {
  return {reinterpret_cast<const std::byte*>(impl_->entry), impl_->size};
}

bool Code::can_run(const Launch& launch) const noexcept {
  const auto& space = launch.space;
  if (space.n_reduced > 1) return false;
  if (impl_->packed.empty() && impl_->scratch.empty()) return true;  // parts take a few pages
  // A sweep over nothing stores nothing, so that there would be nothing to copy out.
  if (space.rows == 0 || space.cols == 0 || Emitted::sweeps(space) == 0) return false;
  Run run(*impl_, launch);
  run.plan();
  return run.panel_bytes() + impl_->scratch_bytes(launch.space) <= kMostScratch;
}

Status Code::run(const Launch& launch, interp::Scratch& scratch) const noexcept {
  Run run(*impl_, launch);
  run.plan();
  const int64_t bytes = run.panel_bytes() + impl_->scratch_bytes(launch.space);
  std::byte* memory = nullptr;
  if (bytes != 0) {
    memory = scratch.reserve(static_cast<std::size_t>(bytes));
    if (memory == nullptr) return Status::kNoMemory;
  }
  return run.run(memory);
}

}  // namespace tilevm::exec::native
