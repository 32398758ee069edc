// One compiled call and when it may run, as plain data: where its arguments have which values,
// conditions on their sizes, and where the inputs and results of its executable are.
#pragma once

#include <array>
#include <vector>

#include "bind/arguments.h"
#include "bind/executable.h"

namespace tilevm::bind {

inline constexpr std::size_t kMostDepth = 32;  // of the operands of a guard

// What a value of the arguments must be: all that the key of a capture says of it.
struct Argument {
  enum class Kind : std::uint8_t {
    kTensor,
    kInteger,  // exactly an int, or a float: any value
    kReal,
    kText,
    kSame,  // this object: None, a bool, an element type, a module; or one that is equal
    kAny    // left to the executable
  };
  Kind kind = Kind::kAny;
  bool floating = false;
  bool equal = false;  // kSame: of a type whose objects are equal if their values are
  bool requires_grad = false;
  bool contiguous = true;
  std::int8_t rank = 0;
  std::int16_t first = 0;              // kTensor: the first value that is this object
  const PyTypeObject* type = nullptr;  // kTensor: torch.Tensor or Parameter; kSame
  host::dlpack::DataType dtype{};
  // Not contiguous: dims by decreasing stride, ~dim where the stride is 0.
  std::array<std::int8_t, kMaxRank> layout{};
  Ref value;  // kText, kSame
};

// Conditions over sizes, strides and ints, in postfix order. What overflows or divides by 0 does
// not hold.
struct GuardStep {
  enum class Op : std::uint8_t {
    kSize,
    kStride,
    kNumber,
    kConstant,
    kRequire,
    kAdd,
    kSub,
    kMul,
    kFloorDiv,
    kMod,
    kMin,
    kMax,
    kEqual,
    kNotEqual,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kAnd,
    kOr,
    kNot
  };
  Op op;
  std::int32_t argument = 0, axis = 0;  // kSize, kStride, kNumber
  std::int64_t value = 0;               // kConstant
};

// Two sizes that must be equal: most guards are that.
struct SizesEqual {
  std::int32_t argument, axis, other_argument, other_axis;
};

// A float that must be this one.
struct RealGuard {
  std::int32_t argument;
  double value;
};

struct Variant {
  enum class Result : std::uint8_t { kSingle, kTuple, kList, kRebuilt };

  bool checked = false;    // arguments are checked here, and modes count
  bool gradients = false;  // its results can be differentiated by parameters that are `wanted`
  std::vector<bool> wanted;
  Modes modes;
  std::shared_ptr<const Form> form;  // of the arguments; null: each is a value
  Ref opened;                        // classes of objects that it looks into
  std::vector<Argument> arguments;   // the values
  std::vector<SizesEqual> equal;
  std::vector<GuardStep> guards;
  std::vector<RealGuard> reals;
  Ref run;                                 // an executable; else called with (leaves, args, {})
  ExecutableObject* executable = nullptr;  // null: `run` is called
  std::vector<std::int32_t> inputs;        // of the executable: an argument, or ~index of `bound`
  Ref bound;                               // a tuple
  Result result = Result::kSingle;
  std::vector<std::int32_t> outputs;  // of the executable, in the order of the result
  Ref rebuild;                        // kRebuilt: makes the result of a tuple of outputs

  // Describes the arguments of a call that ran. False if one is of a kind that has no checks here.
  bool learn(Arguments& args);
  bool matches(const TorchDirect* torch, Arguments& args) const;
  // The result, or null with a Python error set. began: the error is the call's, and not that the
  // arguments are for another variant.
  PyObject* call(Arguments& args, bool& began) const;

 private:
  bool holds(const Arguments& args) const;
  PyObject* call_python(const Arguments& args) const;
  PyObject* result_of(Object* outputs, std::size_t n) const;
};

}  // namespace tilevm::bind
