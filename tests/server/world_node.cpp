// A program of a parameter server for tests, started once for each process. Its arguments are the
// number of steps and the number of copies; `takes_over` as the third one makes a scheduler that
// replaces another one. Workers print `step N` after each step, and `sum X` at the end.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "troika/base/error.h"
#include "troika/server/scheduler.h"
#include "troika/server/world.h"

namespace {

using namespace troika;
using namespace troika::server;

constexpr uint64_t kKeys = 100;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(40));
}

int run(int argc, char** argv) {
  if (argc < 3) return 2;
  const int64_t steps = std::atoll(argv[1]);
  WorldParts parts;
  parts.scheduler.tables = {{.name = "w",
                             .type = ValueType::float64,
                             .keys = kKeys,
                             .width = 2,
                             .application = Application::per_step}};
  parts.scheduler.ranges = 8;
  parts.scheduler.replicas = std::atoi(argv[2]);
  parts.scheduler.limit = std::chrono::milliseconds(800);
  parts.scheduler.takes_over = argc > 3 && std::string_view(argv[3]) == "takes_over";
  parts.server.member.beat = parts.worker.member.beat = std::chrono::milliseconds(80);
  parts.server.resend = parts.worker.resend = std::chrono::milliseconds(100);
  World world(find_world(), parts);
  if (!world.is_worker()) {
    world.serve(soon());
    return 0;
  }
  auto& worker = world.worker(soon());
  const KeySpan all{0, kKeys};
  double sum = 0;
  const auto pull_whole = [&] {
    const auto pull = worker.pull("w", all);
    pull.wait(soon());
    sum = pull.values<double>()[0];
    for (const double value : pull.values<double>()) {
      if (value == sum) continue;
      throw Error(
          "test", ErrorKind::failure,
          {.what = "a step that is not whole", .got = fmt::format("{} and {}", value, sum)});
    }
  };
  int64_t step = 0;
  do {
    worker.begin_step().wait(soon());
    step = worker.step();
    pull_whole();
    worker.push("w", all, std::vector<double>(2 * kKeys, 1)).wait(soon());
    worker.end_step();
    fmt::print("step {}\n", step);
    std::fflush(stdout);
  } while (step + 1 < steps);
  worker.begin_step().wait(soon());
  pull_whole();
  worker.end_step();
  fmt::print("sum {}\n", sum);
  std::fflush(stdout);
  world.leave(soon());
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run(argc, argv);
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return exit_code(error);
}
