// Operators that are loops of their own: what a call gives them.
#include <algorithm>

#include "exec/loops/loops.h"
#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"
#include "trace/trace.h"

namespace tilevm::host {
namespace {

using exec::loops::What;

// Above this many elements, other Python threads may run meanwhile: about 50 us.
constexpr std::int64_t kUnlockElements = 16 << 10;

What what_of(Op op) {
  switch (op) {
    case Op::cumsum:
      return What::kSum;
    case Op::cumprod:
      return What::kProd;
    case Op::cummax:
      return What::kMax;
    case Op::cummin:
      return What::kMin;
    case Op::logcumsumexp:
      return What::kLogSumExp;
    case Op::scatter:
      return What::kScatter;
    case Op::scatter_add:
      return What::kScatterAdd;
    case Op::scatter_mul:
      return What::kScatterMul;
    case Op::scatter_max:
      return What::kScatterMax;
    case Op::scatter_min:
      return What::kScatterMin;
    case Op::argsort:
      return What::kArgSort;
    case Op::argtopk:
      return What::kArgTopK;
    case Op::searchsorted:
      return What::kSearch;
    default:
      break;
  }
  throw InternalError(std::string(info(op).name) + " is no loop");
}

exec::loops::Array array(const Record& record) {
  static_assert(exec::loops::kMaxRank == kMaxRank);
  return {record.data, record.rank, record.sizes, record.strides};
}

}  // namespace

void Executable::run_loop(Frame& frame, int n) {
  const Program& program = plan_.program;
  const Node& node = program.nodes[static_cast<std::size_t>(n)];
  const trace::Span span("launch", info(node.op).name);
  exec::loops::Loop loop;
  loop.what = what_of(node.op);
  loop.storage = fuse::storage_of(program.type(node.inputs[0]).dtype);
  loop.axis = static_cast<int>(node.attrs[0].ints[0]);
  if (node.op == Op::argsort) loop.descending = node.attrs[1].ints[0] != 0;
  if (node.op == Op::argtopk) loop.descending = node.attrs[2].ints[0] != 0;
  if (node.op == Op::searchsorted) loop.right = node.attrs[1].ints[0] != 0;
  for (std::size_t i = 0; i < node.inputs.size(); ++i)
    loop.in[i] = array(frame.records[index(node.inputs[i])]);
  if (node.inputs.size() > 1) loop.index = fuse::storage_of(program.type(node.inputs[1]).dtype);
  loop.out = array(frame.records[index(node.out)]);
  const auto all = std::max({loop.in[0].elements(), loop.in[1].elements(), loop.out.elements()});
  const bool unlocks = all > kUnlockElements;
  const int threads = unlocks ? framework_.threads() : 1;
  if (schedule::Tape* const tape = begin_launch(frame, unlocks)) {
    tape->refused = tape->refused || threads > 1;
    tape->note({loop, 0});
  }
  if (unlocks) framework_.unlock();
  const exec::Status status = exec::loops::run(loop, threads);
  if (unlocks) framework_.lock();
  if (status != exec::Status::kOk) fail_loop(status, n, frame);
}

}  // namespace tilevm::host
