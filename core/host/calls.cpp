// What passes between a call and the framework: tensors of values, numbers, call-outs.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "host/errors.h"
#include "host/executable.h"
#include "host/frame.h"
#include "host/item.h"

namespace tilevm::host {
namespace {

// Whether a complex tensor can have these pairs, as they lie.
bool are_parts(const Record& record, int item_bytes) {
  const auto pair = static_cast<std::uintptr_t>(2 * item_bytes);
  bool even = record.rank > 0 && record.stride(record.rank - 1) == 1 &&
              reinterpret_cast<std::uintptr_t>(record.data) % pair == 0;
  for (int d = 0; d < record.rank - 1; ++d) even = even && record.stride(d) % 2 == 0;
  return even;
}

}  // namespace

// The framework's tensor for a value: the one that owns its memory, or a view of that one.
Object Executable::tensor(Frame& frame, ValueId value) const {
  Object& held = frame.tensors[index(value)];
  if (held != nullptr) return held;
  if (const int input = complex_of_[index(value)]; input >= 0)
    return held = framework_.parts(frame.inputs[static_cast<std::size_t>(input)]);
  const Record& record = frame.records[index(value)];
  if (record.root < 0) throw InternalError("a value of the arena leaves the program");
  const DType dtype = plan_.program.type(value).dtype;
  bool negative = false;
  for (int d = 0; d < record.rank; ++d) negative |= record.stride(d) < 0;
  if (negative && !framework_.negative_strides()) {
    // As torch.empty_like: dims in the order in which they lie in memory.
    std::array<std::int32_t, kMaxRank> order{};
    for (int d = 0; d < record.rank; ++d) order[static_cast<std::size_t>(d)] = d;
    const auto outer_first = [&](std::int32_t a, std::int32_t b) {
      return std::abs(record.stride(a)) > std::abs(record.stride(b));
    };
    std::stable_sort(order.begin(), order.begin() + record.rank, outer_first);
    held = copied(record, dtype, {order.data(), static_cast<std::size_t>(record.rank)});
    return held;
  }
  const Object owner = tensor(frame, record.root);
  held = framework_.view(owner, frame.records[index(record.root)], dtype, record);
  return held;
}

// Memory for a value, with the sizes and strides of `record`: a new tensor, or the frame's.
void Executable::make(Frame& frame, ValueId value, std::int32_t held, std::int64_t elements,
                      Record& record) const {
  const DType dtype = plan_.program.type(value).dtype;
  if (held < 0) {
    frame.tensors[index(value)] = made_complex_[index(value)]
                                      ? framework_.empty_complex(dtype, elements, record)
                                      : framework_.empty(dtype, elements, record);
    return;
  }
  exec::Block& block = frame.held[index(held)];
  const auto bytes = static_cast<std::size_t>(elements * dtype_bytes(dtype));
  if (block.bytes < bytes) {
    exec::release(std::exchange(block, {}));
    block = exec::acquire(bytes);
    if (block.data == nullptr)
      throw MemoryError("no memory for " + std::to_string(bytes) + " bytes of a result");
  } else {
    exec::poison(block);
  }
  record.data = block.data;
}

// An output as it is handed out: a new reference.
Object Executable::result(Frame& frame, std::size_t output) const {
  const ValueId value = outputs_[output].value;
  const Record& record = frame.records[index(value)];
  const bool complex = complex_[output] && targets_[output] < 0;
  if (!complex || (made_complex_[index(value)] && record.root == value))
    return framework_.retain(tensor(frame, value));
  const int item = dtype_bytes(plan_.program.type(value).dtype);
  return are_parts(record, item) ? framework_.complex(tensor(frame, value))
                                 : fresh_copy(frame, output);
}

// A new tensor with the elements of `record`, its dims in `order` or row-major; `where` it lies.
Object Executable::copied(const Record& record, DType dtype, std::span<const std::int32_t> order,
                          bool complex, Record* where) const {
  const int item = dtype_bytes(dtype);
  if (item == 0) throw DTypeError("a tensor of a dtype that kernels do not know must be copied");
  Record fresh = record;
  if (order.empty()) {
    set_dense_strides(fresh);
  } else {
    set_strides_in_order(fresh, order);
  }
  const std::int64_t elements = checked_elements(fresh, item);
  const Object made = complex ? framework_.empty_complex(dtype, elements, fresh)
                              : framework_.empty(dtype, elements, fresh);
  copy(record, fresh, item, framework_.threads());
  if (where != nullptr) *where = fresh;
  return made;
}

// An output whose memory is also another's, though in the program it was a tensor of its own.
Object Executable::fresh_copy(Frame& frame, std::size_t output, Record* made) const {
  const ValueId value = outputs_[output].value;
  return copied(frame.records[index(value)], plan_.program.type(value).dtype, order_of(output),
                complex_[output] && targets_[output] < 0, made);
}

std::span<const std::int32_t> Executable::order_of(std::size_t output) const {
  const std::int32_t order = separate_order_[output];
  if (order < 0) return {};
  return orders_[static_cast<std::size_t>(order)];
}

// A Python number: a new reference if source.makes_object(), else borrowed.
Object Executable::number(const Frame& frame, const Source& source) const {
  const Record& record = frame.records[index(source.value)];
  switch (source.kind) {
    case Source::Kind::kInput:
      return frame.tensors[index(source.value)];
    case Source::Kind::kConstant:
      return source.constant;
    case Source::Kind::kSize:
      return framework_.from_integer(frame.regs[static_cast<std::size_t>(source.size)]);
    default:
      break;
  }
  const Number read = read_number(record.data, source.storage);
  switch (source.storage) {
    case bytecode::Storage::kF32:
    case bytecode::Storage::kF64:
      return framework_.from_real(read.real);
    case bytecode::Storage::kI32:
    case bytecode::Storage::kI64:
      return framework_.from_integer(read.integer);
    case bytecode::Storage::kB8:
      return framework_.from_boolean(read.integer != 0);
    default:  // no kernel makes numbers of narrower types
      break;
  }
  throw InternalError("unknown storage of a number");
}

// The element, where it lies. Its bits are kept as numbers of the call are.
void Executable::read_item(Frame& frame, const HostStep& step) const {
  const ValueId in = step.args[0].value;
  const Record& from = frame.records[index(in)];
  const DType dtype = plan_.program.type(in).dtype;
  check_one(from, "item");
  if (dtype == DType::kOpaque || dtype == DType::kBFloat16 || dtype == DType::kFloat16)
    throw DTypeError("item: of a tensor of " + std::string(dtype_name(dtype)));
  const auto [integer, real] = read_number(from.data, fuse::storage_of(dtype));
  std::int64_t& slot = frame.numbers[index(step.out)];
  slot = is_float(dtype) ? std::bit_cast<std::int64_t>(real) : integer;
  Record& number = frame.records[index(step.out)];
  number.rank = 0;
  number.root = -1;
  number.data = reinterpret_cast<std::byte*>(&slot);
  if (step.n_out < 2) return;
  Record& size = frame.records[index(step.out + 1)];
  size.rank = 1;
  size.size(0) = integer;
  size.stride(0) = 0;
  size.root = -1;
  size.data = nullptr;
  if (step.stage >= 0) run_stage(frame, step.stage);
}

void Executable::call_out(Frame& frame, const HostStep& step) const {
  if (step.target == kItemTarget) return read_item(frame, step);
  if (step.nest >= 0) return run_nest(frame, step);
  const std::span<Object> args(frame.args.data(), step.args.size());
  const std::span<Object> results(frame.args.data() + most_args_,
                                  static_cast<std::size_t>(step.n_out));
  std::size_t n = 0;
  const auto drop_made = [&] {
    for (std::size_t i = 0; i < n; ++i) {
      if (step.args[i].makes_object()) framework_.drop(args[i]);
    }
  };
  try {
    for (; n < args.size(); ++n) {
      const Source& arg = step.args[n];
      args[n] = arg.kind == Source::Kind::kTensor ? tensor(frame, arg.value) : number(frame, arg);
    }
    framework_.call(step.target, args, results);
  } catch (...) {
    drop_made();
    throw;
  }
  drop_made();
  for (int r = 0; r < step.n_out; ++r) {
    frame.tensors[index(step.out + r)] = results[static_cast<std::size_t>(r)];
  }
  for (int r = 0; r < step.n_out; ++r) {
    const ValueId value = step.out + r;
    const Type& type = plan_.program.type(value);
    Record& record = frame.records[index(value)];
    const Object object = frame.tensors[index(value)];
    record.root = value;
    const std::string& name = step.names[static_cast<std::size_t>(r)];
    if (!type.weak) {
      framework_.describe(object, type, name, record);
      continue;
    }
    std::int64_t& slot = frame.numbers[index(value)];
    record.rank = 0;
    record.root = -1;
    record.data = reinterpret_cast<std::byte*>(&slot);
    slot = type.dtype == DType::kBool ? framework_.boolean(object, name)
           : type.dtype == DType::kInt64
               ? framework_.integer(object, name)
               : std::bit_cast<std::int64_t>(framework_.real(object, name));
  }
  if (step.stage >= 0) run_stage(frame, step.stage);
}

}  // namespace tilevm::host
