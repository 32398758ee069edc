// Traces and lines of the core, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <mutex>

#include "bind/python.h"
#include "trace/trace.h"

namespace nb = nanobind;

namespace tilevm::bind {
namespace {

constexpr std::size_t kMostLines = 10000;  // that wait for Python

struct Waiting {
  std::mutex mutex;
  std::deque<std::pair<int, std::string>> lines;
};

Waiting& waiting() {
  static auto* const made = new Waiting;
  return *made;
}

PyObject* line_hook = nullptr;

// Hands lines to Python. Runs in its main thread, between two instructions.
int hand_over(void*) {
  for (;;) {
    std::pair<int, std::string> line;
    {
      const std::lock_guard lock(waiting().mutex);
      if (waiting().lines.empty()) return 0;
      line = std::move(waiting().lines.front());
      waiting().lines.pop_front();
    }
    if (line_hook == nullptr) continue;
    const Ref done(in_python([&] {
      return PyObject_CallFunction(line_hook, "is", line.first, line.second.c_str());
    }));
    if (!done) return -1;
  }
}

// Where lines come from, locks are held that a thread with the interpreter's lock may wait for.
void keep(int level, std::string line) {
  {
    const std::lock_guard lock(waiting().mutex);
    if (waiting().lines.size() >= kMostLines) return;
    waiting().lines.emplace_back(level, std::move(line));
  }
  Py_AddPendingCall(hand_over, nullptr);  // if there are too many, one of these takes the line
}

}  // namespace

void bind_trace(nb::module_& m) {
  m.def("trace_start", trace::start, nb::arg("most"),
        "Keep spans from now on; false: they are kept already.");
  m.def(
      "trace_stop",
      [] {
        const trace::Taken taken = trace::stop();
        nb::list events;
        for (const trace::Event& e : taken.events) {
          events.append(nb::make_tuple(e.kind,
                                       nb::bytes(e.name.data()).attr("decode")("utf-8", "replace"),
                                       e.begin_ns, e.end_ns, e.thread));
        }
        return nb::make_tuple(events, taken.dropped);
      },
      "([(kind, name, begin_ns, end_ns, thread), ...], spans that there was no room for).");
  m.def(
      "trace_capture",
      [](const std::string& name, std::int64_t begin_ns, std::int64_t end_ns) {
        trace::add("capture", name, begin_ns, end_ns);
      },
      nb::arg("name"), nb::arg("begin_ns"), nb::arg("end_ns"), "Keep the span of a capture.");
  m.def("tracing", trace::taking);
  m.def("trace_after_fork", trace::after_fork);
  m.def(
      "on_line",
      [](nb::object hook) {
        drop_reference(std::exchange(line_hook, hook.release().ptr()));
      },
      nb::arg("hook"), "Call hook(level, text) with what `set_log_level` asks for.");
  m.def(
      "set_log_level", [](int level) { trace::listen(level, keep); }, nb::arg("level"),
      "2: programs compiled; 3: also kernels and cuts; 4: also bytecode.");
  m.def(
      "hand_over_lines",
      [] {
        if (hand_over(nullptr) != 0) throw nb::python_error();
      },
      "Lines that wait, now.");
}

}  // namespace tilevm::bind
