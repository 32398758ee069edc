// A program of tensor operators with symbolic sizes: the one input language of the core.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "program/small_vector.h"

#include "ops.gen.h"  // enum class Op, OpInfo, kOps: generated from src/tilevm/ir/ops.py
#include "shape/size.h"

namespace tilevm {

using shape::SizeId;

inline constexpr int kMaxRank = 8;
inline constexpr int kMaxImageAxes = 3;  // that windows of a convolution move along

// kOpaque: anything only call-outs touch (complex, quantised, ...).
enum class DType : std::uint8_t {
  kFloat32,
  kBFloat16,
  kInt64,
  kInt32,
  kBool,
  kFloat64,
  kFloat16,
  kInt16,
  kInt8,
  kUInt8,
  kOpaque
};  // clang-format off
std::string_view dtype_name(DType dtype);            // "float32", ...
std::optional<DType> dtype_from_name(std::string_view name);
int dtype_bytes(DType dtype);                        // kOpaque: 0
inline bool is_float(DType d) { return d == DType::kFloat32 || d == DType::kBFloat16 || d == DType::kFloat64 || d == DType::kFloat16; }
inline bool is_narrow_float(DType d) { return d == DType::kFloat16 || d == DType::kBFloat16; }
inline bool in_kernels(DType d) { return d != DType::kOpaque; }  // what kernels compute with
// clang-format on

struct Shape {
  std::uint8_t rank = 0;
  std::array<SizeId, kMaxRank> dims{};
  SizeId operator[](int i) const { return dims[static_cast<std::size_t>(i)]; }
  SizeId& operator[](int i) { return dims[static_cast<std::size_t>(i)]; }
  std::span<const SizeId> span() const { return {dims.data(), rank}; }
  void push(SizeId s) { dims[rank++] = s; }
  friend bool operator==(const Shape& a, const Shape& b) {
    return a.rank == b.rank && std::equal(a.dims.begin(), a.dims.begin() + a.rank, b.dims.begin());
  }
};

inline bool is_convolution(Op op) { return op == Op::conv || op == Op::conv_windows; }

// weak: a Python number (rank 0; int64, float64 or bool) that promotes as PyTorch's scalars do.
struct Type {
  DType dtype = DType::kFloat32;
  bool weak = false;
  Shape shape;
  friend bool operator==(const Type&, const Type&) = default;
};

using ValueId = std::int32_t;
using Operands = SmallVector<ValueId, 4>;

using Ints = SmallVector<std::int64_t, 2>;
using Sizes = SmallVector<SizeId, 2>;

// A parameter's value. ints: AXIS INT BOOL DTYPE (one), AXES; sizes: SIZE (one), SIZES; number.
struct Attr {
  Ints ints;
  Sizes sizes;
  double number = 0;
  std::int64_t integer = 0;  // exact, if the number was an int or a bool
  enum class NumberKind : std::uint8_t { kFloat, kInt, kBool } number_kind = NumberKind::kFloat;

  static Attr of_ints(Ints v) { return {std::move(v), {}, 0, 0, {}}; }
  static Attr of_dtype(DType d) { return of_ints({static_cast<std::int64_t>(d)}); }
  static Attr of_sizes(Sizes values) { return {{}, std::move(values), 0, 0, {}}; }
  static Attr of_number(double v) { return {{}, {}, v, 0, NumberKind::kFloat}; }
  static Attr of_integer(std::int64_t v) {
    return {{}, {}, static_cast<double>(v), v, NumberKind::kInt};
  }
  static Attr of_bool(bool v) { return {{}, {}, v ? 1.0 : 0.0, v, NumberKind::kBool}; }
  DType dtype() const { return static_cast<DType>(ints[0]); }
};

// attrs are in normal form: axes from 0 (reductions: sorted, all of them listed), sizes of reshape
// and expand without -1, bounds of slice and select within 0..size.
struct Node {
  Op op;
  Operands inputs;
  std::vector<Attr> attrs;  // in the order of the table's params
  ValueId out = -1;         // first result; results are consecutive
  std::int32_t n_out = 1;
  std::int32_t line = -1;  // index into Program::lines, -1: unknown
  bool of_weights = false;  // exp: of weights of a softmax that are rounded to 16 bits
};

struct Value {
  Type type;
  std::int32_t node = -1;  // defining node, -1: an input of the program
};

// What a typing rule or an operator's parameters reject. The bindings map these to
// errors.ShapeError and errors.DTypeError; `what()` names operator, source line and types.
struct ShapeError : std::runtime_error {
  using runtime_error::runtime_error;
};
struct DTypeError : std::runtime_error {
  using runtime_error::runtime_error;
};

// Sizes that must be equal when the program runs, because nothing proves it before.
struct Check {
  SizeId a, b;
  std::string message;  // of the ShapeError, without the values
};

// The target of Program::item, among those of call-outs.
inline constexpr std::int64_t kItemTarget = -2;

// Nodes are appended in order and typed at once; a program is never changed otherwise.
class Program {
 public:
  shape::SizeTable sizes;
  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<std::string> lines;  // source locations
  // Of a node, as it says; empty: unknown.
  std::string line_of(std::int32_t line) const {
    const auto at = static_cast<std::size_t>(line);
    return line >= 0 && at < lines.size() ? lines[at] : std::string();
  }
  std::vector<Check> checks;

  Program() : Program(shape::SizeTable()) {}
  explicit Program(shape::SizeTable sizes);

  ValueId input(Type type);
  void check(SizeId a, SizeId b, std::string message);  // once for a pair

  // Appends `op` and returns its (first) result. Missing trailing attrs take the table's defaults.
  // Throws ShapeError or DTypeError. Not for Op::call.
  ValueId add(Op op, std::span<const ValueId> in, std::vector<Attr> attrs = {}, int line = -1);
  // Appends a call-out with the result types given. Those that are `ordered` run one after the
  // other, as they are in the program: what they read and change besides, nobody sees.
  ValueId call(std::int64_t target, std::span<const ValueId> in, std::span<const Type> results,
               int line = -1, bool ordered = false);

  // Appends a read of the one element of `in`, no 16-bit float, as a weak number. With a `symbol`
  // there is a second result, which has no memory, and the number as its only size.
  ValueId item(ValueId in, SizeId symbol, int line = -1);

  const Type& type(ValueId v) const { return values[static_cast<std::size_t>(v)].type; }
};

// The closed set of typing rules: type of `op` applied to `in`. Brings `attrs`, which are complete,
// to normal form; appends what must be checked at run time. `in_composite`: part of a
// decomposition, where the maximum of no element is fine: softmax of an empty row.
Type infer(shape::SizeTable& sizes, Op op, std::span<const Type> in, std::span<Attr> attrs,
           std::vector<Check>& checks, bool in_composite = false);

// The dtype in which an elementwise operator computes: PyTorch's type promotion, where tensors
// come before tensors of rank 0 before weak scalars. All weak: int64, float64 or bool.
DType promote(std::span<const Type> in);

// The same program without composite operators (table's decompositions), without operators whose
// results nobody uses, and with equal operators merged. Sizes keep their ids (the table moves).
// New value ids; outputs in the same order. Implicit work becomes explicit: elementwise operands
// are cast to the common type (a weak scalar constant becomes a `full` of rank 0 of that dtype, a
// weak run-time scalar a cast), so that every elementwise operator has operands of one dtype
// (where: the last two). bfloat16 and float16 stay what they are: kernels compute them in float32
// without rounding in between, except that a value is rounded where it is compared, rounded,
// arg-reduced or cast: there the encoder rounds. Neither a `full` of such a dtype nor the cast of a
// weak value to it rounds: PyTorch computes with its scalars in float32. Values computed from weak
// scalars alone stay weak; their dtype is float32 (float64 where a float64 operator uses them),
// int64 or bool. Views that change nothing are dropped.
Program lower(Program program);

std::string print(const shape::SizeTable& sizes, const Type& type);  // "float32[B, 768]"
std::string print(const Program& program, const Node& node);         // "sum v1, axes=[0]"
std::string print(const Program& program);  // one line a node; for messages and debugging

}  // namespace tilevm
