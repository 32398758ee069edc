// Spans: none while no trace is taken, no more than there is room for, from many threads.
#include "trace/trace.h"

#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using namespace tilevm;

std::vector<std::string> told;

int run() {
  {
    const trace::Span span("before");
  }
  CHECK(trace::start(100));
  CHECK(!trace::start(100));
  {
    const trace::Span outer("outer", "a");
    const std::string name(200, 'x');
    const trace::Span inner("inner", name);
  }
  trace::Taken taken = trace::stop();
  CHECK(taken.events.size() == 2 && taken.dropped == 0);
  const trace::Event &inner = taken.events[0], &outer = taken.events[1];
  CHECK(std::string(inner.kind) == "inner" && std::string(outer.name.data()) == "a");
  CHECK(std::string(inner.name.data()) == std::string(inner.name.size() - 1, 'x'));
  CHECK(outer.begin_ns <= inner.begin_ns && inner.end_ns <= outer.end_ns);
  CHECK(inner.begin_ns <= inner.end_ns && inner.thread == outer.thread);

  // A span that is open at the end is in no trace, neither this one nor the next.
  CHECK(trace::start(100));
  {
    const trace::Span span("open");
    CHECK(trace::stop().events.empty());
    CHECK(trace::start(100));
  }
  CHECK(trace::stop().events.empty());

  CHECK(trace::start(1000));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) const trace::Span span("many");
    });
  }
  for (std::thread& thread : threads) thread.join();
  taken = trace::stop();
  CHECK(taken.events.size() == 1000 && taken.dropped == 1000);

  trace::tell(2, "to nobody");
  trace::listen(
      3, [](int level, std::string line) { told.push_back(std::to_string(level) + " " + line); });
  CHECK(trace::tells(2) && trace::tells(3) && !trace::tells(4));
  trace::tell(3, "a line");
  CHECK(told == std::vector<std::string>{"3 a line"});
  trace::listen(0, nullptr);
  CHECK(!trace::tells(1));
  return 0;
}

}  // namespace

int main() { return run(); }
