// Names of emitted functions for tools outside: perf reads them from a file, gdb from this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tilevm::exec::native {

// kMap: a line a function in /tmp/perf-PID.map. kJitdump: their code as well, in /tmp/jit-PID.dump,
// for `perf inject --jit`; it stays right where memory is used again.
enum class Perf : std::uint8_t { kOff, kMap, kJitdump };

// For functions that are emitted from now on.
void set_perf(Perf perf) noexcept;
bool wants_names() noexcept;

// Tells that `code` is the function `name`. Nothing happens if its file cannot be written.
void announce(std::span<const std::byte> code, std::string_view name) noexcept;

}  // namespace tilevm::exec::native
