// The door of the recorder to the core: a capsule with the engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <stdexcept>
#include <tuple>

#include "bind/explain.h"
#include "eager/engine.h"
#include "eager/template.h"
#include "eager/watch.h"

namespace nb = nanobind;

namespace tilevm::bind {

namespace {

eager::Condition condition(Program& program, const std::string& a, const std::string& relation,
                           const std::string& b) {
  using Relation = eager::Condition::Relation;
  const SizeId left = program.sizes.parse(a), right = program.sizes.parse(b);
  if (relation == "==") return {Relation::kEqual, left, right};
  if (relation == "!=") return {Relation::kNotEqual, left, right};
  if (relation == "<") return {Relation::kLess, left, right};
  if (relation == "<=") return {Relation::kLessEqual, left, right};
  if (relation == ">") return {Relation::kLess, right, left};
  if (relation == ">=") return {Relation::kLessEqual, right, left};
  throw std::invalid_argument("no such relation: " + relation);
}

}  // namespace

void bind_eager(nb::module_& m) {
  m.def(
      "eager_engine",
      [] {
        static eager::Engine* const engine =
            eager::make_engine([]() noexcept { return threads_setting(); }).release();
        return nb::capsule(engine, eager::kEngineName);
      },
      "The engine that runs recorded operators, for the recorder.");
  m.def(
      "add_template",
      [](const Program& program,
         const std::vector<std::tuple<std::string, std::string, std::string>>& conditions,
         const std::vector<std::string>& numbers,
         const std::vector<std::vector<std::int32_t>>& orders, const std::vector<bool>& complex,
         const std::vector<std::pair<std::int32_t, double>>& limits) {
        Program own = program;
        std::vector<SizeId> symbols;
        for (const std::string& text : numbers) symbols.push_back(own.sizes.parse(text));
        std::vector<eager::Condition> parsed;
        for (const auto& [a, relation, b] : conditions) {
          parsed.push_back(condition(own, a, relation, b));
        }
        std::vector<eager::Limit> of_operands;
        for (const auto& [operand, most] : limits) of_operands.push_back({operand, most});
        return eager::add_template(
            std::make_unique<eager::Template>(std::move(own), std::move(parsed), std::move(symbols),
                                              orders, complex, std::move(of_operands)));
      },
      nb::arg("program"), nb::arg("conditions"), nb::arg("numbers"), nb::arg("orders"),
      nb::arg("complex"), nb::arg("limits"),
      "Keep a program as what recorded segments may consist of, for sizes of which `conditions`\n"
      "hold, (size, \"==\", size). numbers: its symbols that are arguments by themselves; orders:\n"
      "of the results, how they lie in memory, dims from outermost; complex: which are parts of\n"
      "complex numbers; limits: (operand, most) of its elements. Returns its number.");
  m.def(
      "eager_segments",
      [] {
        nb::list texts;
        for (const std::string& text : eager::segment_texts()) texts.append(text.c_str());
        return texts;
      },
      "Programs of recorded segments, the most recently used first, as text.");
  m.def("watch_segments", eager::watch_segments,
        "Note the segments that this thread runs from now on.");
  m.def(
      "watched_segments",
      [](bool with_assembly) {
        nb::list runs;
        std::map<host::Executable*, nb::dict> known;
        const eager::Watched watched = eager::watched_segments();
        for (const eager::SegmentRun& run : watched.segments) {
          const auto [found, is_new] = known.try_emplace(run.executable.get());
          if (is_new) found->second = explained(*run.executable, nullptr, with_assembly);
          nb::object profile = nb::none();
          if (run.profile) profile = profile_row(*run.executable, *run.profile);
          runs.append(nb::make_tuple(run.reason.c_str(), found->second, profile));
        }
        return nb::make_tuple(runs, watched.eager);
      },
      nb::arg("with_assembly") = false,
      "What was noted since watch_segments(), no longer noting: (what made it run, all that\n"
      "explain shows, what it took) of each run; equal segments share the second. And the names\n"
      "of the operators on tensors that were not recorded.");
  m.def("watched_so_far", eager::watched_so_far, "How many runs and operators are noted so far.");
  m.def("set_template_calls", eager::set_template_calls, nb::arg("count"),
        "Calls of a kind of an operator without a row until a template is asked for; 0: never.");
  m.def("set_most_segments", eager::set_most_segments, nb::arg("count"),
        "Programs of recorded segments that are kept.");
}

}  // namespace tilevm::bind
