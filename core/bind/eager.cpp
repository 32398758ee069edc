// The door of the recorder to the core: a capsule with the engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "bind/explain.h"
#include "eager/engine.h"
#include "eager/watch.h"

namespace nb = nanobind;

namespace tilevm::bind {

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
  m.def("set_most_segments", eager::set_most_segments, nb::arg("count"),
        "Programs of recorded segments that are kept.");
}

}  // namespace tilevm::bind
