// The class Program in Python. Sizes are ints or text, dtypes names, values ints.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "bind/python.h"
#include "program/program.h"

namespace nb = nanobind;

namespace tilevm::bind {

namespace {

DType dtype_of(std::string_view name) {
  const auto dtype = dtype_from_name(name);
  return dtype ? *dtype : DType::kOpaque;
}

SizeId size_of(Program& p, nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return p.sizes.parse(nb::cast<std::string_view>(value));
  return p.sizes.constant(nb::cast<std::int64_t>(value));
}

Shape shape_of(Program& p, nb::handle sizes) {
  Shape shape;
  if (nb::len(sizes) > static_cast<std::size_t>(kMaxRank)) {
    throw ShapeError("rank " + std::to_string(nb::len(sizes)) + ". Ranks go up to " +
                     std::to_string(kMaxRank) + ".");
  }
  for (nb::handle s : sizes) shape.push(size_of(p, s));
  return shape;
}

Attr number_of(nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) return Attr::of_bool(nb::cast<bool>(value));
  if (nb::isinstance<nb::int_>(value)) {
    int overflow = 0;
    const long long i = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0) return Attr::of_integer(i);
  }
  const double d = PyFloat_AsDouble(value.ptr());
  if (d == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return Attr::of_number(d);
}

Attr attr_of(Program& p, ParamKind kind, nb::handle value) {
  switch (kind) {
    case ParamKind::kSize:
      return Attr::of_sizes({size_of(p, value)});
    case ParamKind::kSizes: {
      std::vector<SizeId> sizes;
      for (nb::handle s : value) sizes.push_back(size_of(p, s));
      return Attr::of_sizes(std::move(sizes));
    }
    case ParamKind::kDtype: {
      const auto name = nb::cast<std::string>(value);
      const auto dtype = dtype_from_name(name);
      if (!dtype) throw DTypeError("no such dtype: " + name);
      return Attr::of_dtype(*dtype);
    }
    case ParamKind::kNumber:
      return number_of(value);
    case ParamKind::kBool:
      return Attr::of_ints({nb::cast<bool>(value)});
    case ParamKind::kAxes:
      if (!nb::isinstance<nb::int_>(value)) {
        return Attr::of_ints(nb::cast<std::vector<std::int64_t>>(value));
      }
      [[fallthrough]];
    default:
      return Attr::of_ints({nb::cast<std::int64_t>(value)});
  }
}

Attr default_of(Program& p, const OpInfo& row, const ParamInfo& param) {
  if (param.required) {
    throw std::invalid_argument(std::string(row.name) + ": parameter " + param.name +
                                " is missing");
  }
  switch (param.kind) {
    case ParamKind::kSize:
      return Attr::of_sizes({p.sizes.constant(param.value)});
    case ParamKind::kNumber:
      return Attr::of_integer(param.value);
    case ParamKind::kAxes:
    case ParamKind::kSizes:
      return {};
    default:
      return Attr::of_ints({param.value});
  }
}

std::vector<Attr> attrs_of(Program& p, const OpInfo& row, nb::handle params) {
  std::vector<Attr> attrs;
  if (!nb::isinstance<nb::dict>(params)) {
    const auto given = static_cast<int>(nb::len(params));
    for (int i = 0; i < given; ++i) {
      if (i >= row.n_params) {
        throw std::invalid_argument(std::string(row.name) + ": " + std::to_string(given) +
                                    " parameters given, it has " + std::to_string(row.n_params));
      }
      attrs.push_back(attr_of(p, row.params()[static_cast<std::size_t>(i)].kind, params[i]));
    }
    return attrs;
  }
  const nb::dict by_name = nb::borrow<nb::dict>(params);
  for (const auto& [key, value] : by_name) {
    const auto name = nb::cast<std::string>(key);
    const auto has = [&](const ParamInfo& param) { return name == param.name; };
    if (std::ranges::none_of(row.params(), has)) {
      throw std::invalid_argument(std::string(row.name) + ": no parameter " + name);
    }
  }
  for (const ParamInfo& param : row.params()) {
    PyObject* value = PyDict_GetItemString(by_name.ptr(), param.name);
    attrs.push_back(value != nullptr ? attr_of(p, param.kind, value) : default_of(p, row, param));
  }
  return attrs;
}

int line_of(Program& p, const std::optional<std::string_view>& text) {
  constexpr std::size_t kRecent = 16;  // neighbours share lines; a duplicate is harmless
  if (!text) return -1;
  const std::size_t n = p.lines.size();
  for (std::size_t i = n; i-- > n - std::min(n, kRecent);) {
    if (p.lines[i] == *text) return static_cast<int>(i);
  }
  p.lines.emplace_back(*text);
  return static_cast<int>(n);
}

nb::object size_object(const Program& p, SizeId s) {
  if (const auto value = p.sizes.value(s)) return nb::int_(*value);
  return nb::cast(p.sizes.print(s));
}

const Type& type_at(const Program& p, ValueId v) {
  if (v < 0 || static_cast<std::size_t>(v) >= p.values.size()) {
    throw std::invalid_argument("no value " + std::to_string(v));
  }
  return p.type(v);
}

nb::tuple type_object(const Program& p, ValueId v) {
  const Type& type = type_at(p, v);
  nb::list sizes;
  for (SizeId s : type.shape.span()) sizes.append(size_object(p, s));
  return nb::make_tuple(dtype_name(type.dtype), type.weak, nb::tuple(sizes));
}

std::int64_t size_value(Program& p, std::string_view text, const nb::dict& env) {
  const SizeId size = p.sizes.parse(text);
  const std::vector<shape::SizeStep> steps = p.sizes.compile({&size, 1});
  std::vector<std::int64_t> regs(static_cast<std::size_t>(p.sizes.count()));
  std::vector<bool> known(regs.size());
  for (const auto& [key, value] : env) {
    const auto symbol = static_cast<std::size_t>(p.sizes.symbol(nb::cast<std::string_view>(key)));
    if (symbol >= regs.size()) continue;  // new with this look-up: `size` does not need it
    regs[symbol] = nb::cast<std::int64_t>(value);
    known[symbol] = true;
  }
  for (const shape::SizeStep& step : steps) known[static_cast<std::size_t>(step.out)] = true;
  const auto need = [&](std::int32_t i) {
    if (!known[static_cast<std::size_t>(i)]) {
      throw std::invalid_argument("no value for the symbol " +
                                  std::string(p.sizes.symbol_name(SizeId{i})));
    }
  };
  need(static_cast<std::int32_t>(size));
  for (const shape::SizeStep& step : steps) {
    if (step.kind == shape::SizeStep::Kind::kConst) continue;
    need(step.a);
    need(step.b);
  }
  shape::evaluate(steps, regs);
  return regs[static_cast<std::size_t>(size)];
}

nb::object size_compare(Program& p, std::string_view a, std::string_view b) {
  switch (p.sizes.equal(p.sizes.parse(a), p.sizes.parse(b))) {
    case shape::Answer::kYes:
      return nb::bool_(true);
    case shape::Answer::kNo:
      return nb::bool_(false);
    default:
      return nb::none();
  }
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const ShapeError& e) {
      PyErr_SetString(error_class("ShapeError", PyExc_ValueError), e.what());
    } catch (const DTypeError& e) {
      PyErr_SetString(error_class("DTypeError", PyExc_TypeError), e.what());
    }
  });

  nb::class_<Program>(m, "Program")
      .def(nb::init<>())
      .def(
          "symbol",
          [](Program& p, std::string_view name, std::int64_t min, std::int64_t max,
             std::int64_t multiple_of) { p.sizes.symbol(name, {min, max, multiple_of}); },
          nb::arg("name"), nb::arg("min") = 0, nb::arg("max") = INT64_MAX,
          nb::arg("multiple_of") = 1)
      .def(
          "input",
          [](Program& p, std::string_view dtype, nb::handle shape, bool weak) {
            return p.input({dtype_of(dtype), weak, shape_of(p, shape)});
          },
          nb::arg("dtype"), nb::arg("shape"), nb::arg("weak") = false)
      .def(
          "add",
          [](Program& p, std::string_view name, const std::vector<ValueId>& inputs,
             nb::handle params, std::optional<std::string_view> line) {
            const auto op = op_from_name(name);
            if (!op) throw std::invalid_argument("no such operator: " + std::string(name));
            const int at = line_of(p, line);
            return p.add(*op, inputs, attrs_of(p, info(*op), params), at);
          },
          nb::arg("op"), nb::arg("inputs"), nb::arg("params") = nb::dict(),
          nb::arg("line").none() = nb::none())
      .def(
          "call",
          [](Program& p, std::int64_t target, const std::vector<ValueId>& inputs,
             nb::sequence results, std::optional<std::string_view> line, bool ordered) {
            std::vector<Type> types;
            for (nb::handle t : results) {
              types.push_back({dtype_of(nb::cast<std::string_view>(t[0])), nb::cast<bool>(t[1]),
                               shape_of(p, t[2])});
            }
            for (ValueId v : inputs) type_at(p, v);
            return p.call(target, inputs, types, line_of(p, line), ordered);
          },
          nb::arg("target"), nb::arg("inputs"), nb::arg("result_types"),
          nb::arg("line").none() = nb::none(), nb::arg("ordered") = false)
      .def(
          "item",
          [](Program& p, ValueId v, std::optional<std::string_view> symbol,
             std::optional<std::string_view> line) {
            type_at(p, v);
            return p.item(v, symbol ? p.sizes.parse(*symbol) : shape::kNoSize, line_of(p, line));
          },
          nb::arg("value"), nb::arg("symbol").none() = nb::none(),
          nb::arg("line").none() = nb::none())
      .def(
          "check",
          [](Program& p, nb::handle a, nb::handle b, std::string message) {
            p.check(size_of(p, a), size_of(p, b), std::move(message));
          },
          nb::arg("a"), nb::arg("b"), nb::arg("message"))
      .def("output",
           [](Program& p, ValueId v) {
             type_at(p, v);
             p.outputs.push_back(v);
           })
      .def("type", &type_object)
      .def("checks",
           [](const Program& p) {
             nb::list all;
             for (const Check& c : p.checks) {
               all.append(nb::make_tuple(size_object(p, c.a), size_object(p, c.b), c.message));
             }
             return all;
           })
      .def("size_str",
           [](Program& p, std::string_view text) { return p.sizes.print(p.sizes.parse(text)); })
      .def("size_value", &size_value)
      .def("size_compare", &size_compare)
      .def("lowered", [](const Program& p) { return lower(p); })
      .def("__str__", [](const Program& p) { return print(p); });
}

}  // namespace tilevm::bind
