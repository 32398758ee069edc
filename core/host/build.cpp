#include <chrono>

#include "host/executable.h"
#include "trace/trace.h"

namespace tilevm::host {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

std::string told(double us) { return std::to_string(static_cast<std::int64_t>(us + 0.5)) + " us"; }

void tell_kernels(const Executable& exe) {
  for (const schedule::Kernel& kernel : exe.kernels()) {
    const fuse::KernelGraph& graph = kernel.graph();
    trace::tell(3, "kernel " + graph.name + ": " + std::to_string(graph.nodes.size()) + " nodes, " +
                       std::to_string(graph.operands.size()) + " operands");
  }
  for (const fuse::Decision& decision : exe.plan().decisions) {
    const std::string fact = fuse::fact(exe.plan().program, decision.why);
    const std::string value = decision.value < 0 ? "" : "%" + std::to_string(decision.value) + ": ";
    trace::tell(
        3, "cut: " + value + fuse::reason(decision.why) + (fact.empty() ? "" : " [" + fact + "]"));
  }
}

}  // namespace

std::unique_ptr<Executable> build(Program program, const Options& options, Framework& framework,
                                  Phases* phases) {
  const std::size_t n_operators = program.nodes.size();
  const Clock::time_point begin = Clock::now();
  Program lowered = [&] {
    const trace::Span span("lower");
    return lower(std::move(program));
  }();
  Phases took;
  took.lower_us = microseconds(begin, Clock::now());
  const Clock::time_point is_lower = Clock::now();
  fuse::Plan plan = [&] {
    const trace::Span span("fuse");
    return fuse::fuse(std::move(lowered));
  }();
  const Clock::time_point is_fused = Clock::now();
  took.fuse_us = microseconds(is_lower, is_fused);
  const trace::Span span("host program");
  auto made = std::make_unique<Executable>(std::move(plan), options, framework);
  took.host_us = microseconds(is_fused, Clock::now());
  if (trace::tells(2)) {
    trace::tell(2, "compiled " + std::to_string(n_operators) + " operators to " +
                       std::to_string(made->steps().size()) + " steps with " +
                       std::to_string(made->kernels().size()) + " kernels: lower " +
                       told(took.lower_us) + ", fuse " + told(took.fuse_us) + ", host program " +
                       told(took.host_us));
  }
  if (phases != nullptr) *phases = took;
  if (trace::tells(3)) tell_kernels(*made);
  return made;
}

}  // namespace tilevm::host
