// `_core.bytecode`: text, verification, and running a program on arrays of up to two dims.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind/python.h"
#include "bytecode/bytecode.h"
#include "exec/check.h"
#include "exec/interp/interp.h"
#include "exec/native/native.h"
#include "isa.gen.h"

namespace nb = nanobind;

namespace tilevm::bind {
namespace {

using bytecode::Cls;
using bytecode::OperandInfo;
using bytecode::Role;
using bytecode::Storage;

[[noreturn]] void reject(const std::string& what) {
  PyErr_SetString(error_class("BytecodeError", PyExc_ValueError), what.c_str());
  throw nb::python_error();
}

std::string operand_name(std::size_t m) { return "operand m" + std::to_string(m); }

// Any bytes, copied to where a program may lie.
std::vector<std::byte> bytes_of(nb::handle data) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(data.ptr(), &buffer, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto* from = static_cast<const std::byte*>(buffer.buf);
  std::vector<std::byte> bytes(from, from + buffer.len);
  PyBuffer_Release(&buffer);
  return bytes;
}

std::vector<std::byte> verified(nb::handle data) {
  std::vector<std::byte> bytes = bytes_of(data);
  if (const std::string error = bytecode::verify(bytes); !error.empty()) reject(error);
  return bytes;
}

// An array's memory, held until this goes away.
class Buffer {
 public:
  Buffer(nb::handle object, bool writable) {
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) throw nb::python_error();
    held_ = true;
  }
  Buffer(Buffer&& other) noexcept
      : buffer_(other.buffer_), held_(std::exchange(other.held_, false)) {}
  ~Buffer() {
    if (held_) PyBuffer_Release(&buffer_);
  }

  int rank() const { return buffer_.ndim; }
  std::int64_t size(int d) const { return buffer_.shape[d]; }
  std::int64_t stride(int d) const { return buffer_.strides[d]; }
  std::byte* data() const { return static_cast<std::byte*>(buffer_.buf); }

  bool holds(Storage storage) const {
    if (buffer_.itemsize != bytecode::storage_bytes(storage)) return false;
    std::string_view format = buffer_.format != nullptr ? buffer_.format : "B";
    if (!format.empty() && (format[0] == '@' || format[0] == '=')) format.remove_prefix(1);
    if (format.size() != 1) return false;
    constexpr std::string_view formats[] = {"f",  "H", "d", "il", "lq",
                                            "?B", "e", "b", "B",  "h"};  // as Storage
    static_assert(std::size(formats) == bytecode::kStorages);
    return formats[static_cast<int>(storage)].find(format[0]) != std::string_view::npos;
  }

  exec::Extent extent() const {
    std::int64_t low = 0, high = buffer_.itemsize;
    for (int d = 0; d < rank(); ++d) {
      if (size(d) == 0) return {data(), data()};
      const std::int64_t reach = (size(d) - 1) * stride(d);
      (reach < 0 ? low : high) += reach;
    }
    return {data() + low, data() + high};
  }

 private:
  Py_buffer buffer_;
  bool held_ = false;
};

// Binds arrays to operands and finds how many rows and columns there are.
class Arrays {
 public:
  Arrays(const bytecode::View& program, nb::sequence inputs, nb::sequence outputs)
      : program_(program), bindings_(program.operands.size()), extents_(program.operands.size()) {
    std::size_t next_input = 0, next_output = 0;
    for (std::size_t m = 0; m < program.operands.size(); ++m) {
      const Role role = program.operands[m].role;
      if (role == Role::kScratch || role == Role::kIota) continue;
      const bool output = role == Role::kOutput;
      bind(m,
           take(output ? outputs : inputs, output ? next_output++ : next_input++,
                output ? "outputs" : "inputs"),
           output);
    }
    expect_all(inputs, next_input, "inputs");
    expect_all(outputs, next_output, "outputs");
    for (std::size_t m = 0; m < program.operands.size(); ++m) {
      if (program.operands[m].role == Role::kIota) bind_iota(m);
    }
  }

  exec::Launch launch() const {
    exec::Space space;
    space.rows = rows_.value_or(1);
    space.cols = cols_.value_or(1);
    return {space, bindings_};
  }
  std::span<const exec::Extent> extents() const { return extents_; }

 private:
  static nb::object take(nb::sequence arrays, std::size_t i, const char* what) {
    if (i >= nb::len(arrays)) {
      reject("the program needs more than " + std::to_string(nb::len(arrays)) + " " + what);
    }
    return arrays[i];
  }

  static void expect_all(nb::sequence arrays, std::size_t used, const char* what) {
    if (nb::len(arrays) != used) {
      reject("the program has " + std::to_string(used) + " " + what + ", but " +
             std::to_string(nb::len(arrays)) + " were given");
    }
  }

  static void agree(std::optional<std::int64_t>& extent, std::int64_t size, std::size_t m,
                    const char* what) {
    if (extent && *extent != size) {
      reject(operand_name(m) + " has " + std::to_string(size) + " " + what + ", others have " +
             std::to_string(*extent));
    }
    extent = size;
  }

  void bind(std::size_t m, nb::handle array, bool output) {
    const OperandInfo& info = program_.operands[m];
    const Buffer& buffer = buffers_.emplace_back(array, output);
    if (!buffer.holds(info.storage)) reject(operand_name(m) + ": array of another element type");
    exec::Binding& bound = bindings_[m];
    bound.base = buffer.data();
    extents_[m] = buffer.extent();
    const bool rows = (static_cast<int>(info.cls) & static_cast<int>(Cls::kRow)) != 0;
    const bool cols = (static_cast<int>(info.cls) & static_cast<int>(Cls::kColumn)) != 0;
    const bool gather = info.role == Role::kGather;
    // Dims in order: rows, the gathered axis, columns; those of size 1 in front may be missing
    // or too many.
    int need = int{rows} + int{gather} + int{cols};
    int d = 0;
    if (buffer.rank() < need && !(rows && cols && buffer.rank() == need - 1)) {
      reject(operand_name(m) + ": array of rank " + std::to_string(buffer.rank()) +
             ", but the operand has " + std::to_string(need) + " dims");
    }
    const bool one_row = rows && buffer.rank() < need;
    int extra = buffer.rank() - need;
    const auto skip_ones = [&] {
      while (extra > 0 && buffer.size(d) == 1) {
        ++d;
        --extra;
      }
    };
    if (!rows || !cols) skip_ones();
    if (rows && !one_row) {
      agree(rows_, buffer.size(d), m, "rows");
      bound.y_stride = buffer.stride(d++);
    } else if (one_row) {
      agree(rows_, 1, m, "rows");
    }
    if (gather) {
      bound.gather_size = buffer.size(d);
      bound.gather_stride = buffer.stride(d++);
    }
    if (cols) {
      agree(cols_, buffer.size(d), m, "columns");
      bound.x_stride = buffer.stride(d++);
    }
    skip_ones();
    if (extra > 0) reject(operand_name(m) + ": array of too many dims");
  }

  // Positions: along the row, or row after row.
  void bind_iota(std::size_t m) {
    const auto cls = static_cast<int>(program_.operands[m].cls);
    const bool cols = (cls & static_cast<int>(Cls::kColumn)) != 0;
    const bool rows = (cls & static_cast<int>(Cls::kRow)) != 0;
    bindings_[m].x_stride = cols ? 1 : 0;
    bindings_[m].y_stride = !rows ? 0 : cols ? cols_.value_or(1) : 1;
  }

  const bytecode::View& program_;
  std::vector<Buffer> buffers_;
  std::vector<exec::Binding> bindings_;
  std::vector<exec::Extent> extents_;
  std::optional<std::int64_t> rows_, cols_;
};

exec::Status run_on(const std::string& tier, std::span<const std::byte> bytes,
                    const exec::Launch& launch) {
  exec::interp::Scratch scratch;
  if (tier != "interp") {
    std::string refusal;
    const auto code = exec::native::Code::emit(bytes, exec::native::best(), &refusal);
    if (code && code->can_run(launch)) return code->run(launch, scratch);
    if (tier == "native") reject("not on the native tier: " + refusal);
  }
  return exec::interp::Kernel(bytes).run(launch, scratch);
}

void run(nb::handle data, nb::sequence inputs, nb::sequence outputs, const std::string& tier) {
  const std::vector<std::byte> bytes = verified(data);
  const bytecode::View program = bytecode::view(bytes);
  const Arrays arrays(program, inputs, outputs);
  const exec::Launch launch = arrays.launch();
  if (const std::string error = exec::check_launch(program, launch, arrays.extents());
      !error.empty()) {
    reject(error);
  }
  switch (run_on(tier, bytes, launch)) {
    case exec::Status::kOk:
      return;
    case exec::Status::kIndexOutOfRange:
      throw nb::index_error("gather: index out of range");
    case exec::Status::kDivisionByZero:
      PyErr_SetString(PyExc_ZeroDivisionError, "integer division by zero");
      throw nb::python_error();
    case exec::Status::kNoMemory:
    case exec::Status::kBadProgram:
      throw std::bad_alloc();
  }
}

}  // namespace

void bind_bytecode(nb::module_& m) {
  nb::module_ sub = m.def_submodule("bytecode", "Programs as bytes and as text.");
  sub.def(
      "assemble",
      [](const std::string& text) {
        try {
          const std::vector<std::byte> bytes = bytecode::assemble(text);
          return nb::bytes(bytes.data(), bytes.size());
        } catch (const std::invalid_argument& e) {
          reject(e.what());
        }
      },
      nb::arg("text"));
  sub.def(
      "disassemble", [](nb::handle data) { return bytecode::disassemble(verified(data)); },
      nb::arg("data"));
  sub.def("verify", [](nb::handle data) { verified(data); }, nb::arg("data"));
  sub.def("run", run, nb::arg("data"), nb::arg("inputs"), nb::arg("outputs"), nb::kw_only(),
          nb::arg("tier") = "auto",
          "Verify `data` and run it. Arrays are bound to operands in order, inputs and gathered\n"
          "tables first by role; dims are rows, gathered axis, columns, as the operand has them.\n"
          "tier: \"auto\", \"interp\", or \"native\".");
}

}  // namespace tilevm::bind
