// The door of the recorder to the core: a capsule with the engine.
#include <nanobind/nanobind.h>

#include "bind/framework.h"
#include "eager/engine.h"

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
  m.def("set_most_segments", eager::set_most_segments, nb::arg("count"),
        "Programs of recorded segments that are kept.");
}

}  // namespace tilevm::bind
