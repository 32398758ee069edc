// A team of threads: OpenMP's, as loaded by the host process (torch brings it), never a second one.
#pragma once

namespace tilevm::exec {

// Calls work(data, i) for every i below n, each on a thread of its own if an OpenMP runtime is
// loaded, else one after the other. In a forked child it always runs inline: the team of the
// parent does not exist there. Not to be nested. `work` must not throw.
void parallel(int n, void (*work)(void* data, int i), void* data) noexcept;

// The same for i below n * each on n threads: each does its own, in order, then what is left of
// others', so that one that is slow or late does not keep all waiting.
void parallel(int n, int each, void (*work)(void* data, int i), void* data) noexcept;

// Whether there is one: else parallel() works on the thread that calls it.
bool has_team() noexcept;

}  // namespace tilevm::exec
