#include "troika/parallel/servers/coordination.h"

#include <chrono>
#include <exception>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/server/batch/coordinator.h"
#include "troika/server/world.h"

namespace troika::parallel {

namespace {

// Replicas may load data, validate and save for this time between two rounds.
constexpr auto kAnyTime = std::chrono::years(100);
// How often a call that waits for the first workers looks whether it is to end.
constexpr auto kBetweenLooks = std::chrono::milliseconds(200);

// The server's worker that coordinates, once all take part; null if it was stopped before.
server::Worker* ready_worker(server::World& world, const std::atomic<bool>& is_stopped) {
  while (!is_stopped) {
    try {
      return &world.coordinating_worker(Deadline::after(kBetweenLooks));
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::timeout) throw;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<double> IterationNumbers::to_numbers() const {
  return {value, gradient, step, evaluations, outcome, backups, repeated};
}

IterationNumbers IterationNumbers::from(std::span<const double> numbers) {
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]};
}

server::LbfgsOptions lbfgs_options(const layout::SandblasterExchange& options) {
  return {.history = static_cast<int>(options.history),
          .tolerance = options.tolerance,
          .line_search = {.decrease = options.decrease,
                          .curvature = options.curvature,
                          .most_evaluations = static_cast<int>(options.most_evaluations)}};
}

std::vector<server::TableSpec> sandblaster_tables(const layout::SandblasterExchange& options,
                                                  uint64_t parameters) {
  const int history = static_cast<int>(options.history);
  auto tables = server::vector_tables(server::Lbfgs::vector_names(history), parameters, "g");
  tables.push_back({.name = kLbfgsNumbers,
                    .type = server::ValueType::float64,
                    .keys = IterationNumbers::kCount + server::Lbfgs::state_size(history)});
  return tables;
}

Coordination::Coordination(server::World& world, const layout::SandblasterExchange& options,
                           int replicas, Milliseconds timeout)
    : world_(world), options_(options), replicas_(replicas), timeout_(timeout), thread_([this] {
        run();
      }) {}

Coordination::~Coordination() {
  is_stopped_ = true;
  thread_.join();
}

void Coordination::run() {
  try {
    auto* const worker = ready_worker(world_, is_stopped_);
    if (!worker) return;
    server::Coordinator coordinator(
        world_.scheduler_endpoint(), *worker,
        {.portions = static_cast<uint64_t>(options_.portions) * static_cast<uint64_t>(replicas_),
         .backups = static_cast<int>(options_.backups),
         .replicas = static_cast<uint64_t>(replicas_),
         .is_stopped = [this] { return is_stopped_.load(); }});
    try {
      make_rounds(coordinator);
    } catch (const std::exception& problem) {
      coordinator.fail(problem.what());
      if (!is_stopped_) log::error("the coordinator of the replicas: {}", problem.what());
    }
    if (!is_stopped_) worker->leave(Deadline::after(timeout_));
  } catch (const std::exception& problem) {
    if (!is_stopped_) log::error("the coordinator of the replicas: {}", problem.what());
  }
}

void Coordination::make_rounds(server::Coordinator& coordinator) {
  auto& worker = world_.coordinating_worker(Deadline::after(timeout_));
  server::ServedVectors vectors(worker, timeout_);
  server::Lbfgs lbfgs(
      vectors,
      [&] {
        double value = coordinator.evaluate(Deadline::after(kAnyTime));
        if (options_.penalty > 0) {
          const auto squares =
              vectors.compute({server::VectorOperation::add("g", options_.penalty, "x"),
                               server::VectorOperation::dot("x", "x")});
          value += options_.penalty / 2 * squares[0];
        }
        return value;
      },
      lbfgs_options(options_));
  const auto size =
      IterationNumbers::kCount + server::Lbfgs::state_size(static_cast<int>(options_.history));
  const server::KeySpan all{0, size};
  for (int64_t round = 0; coordinator.wait_until_asked(round, Deadline::after(kAnyTime)); ++round) {
    const auto before = coordinator.counts();
    const auto read = worker.pull(kLbfgsNumbers, all);
    read.wait(Deadline::after(timeout_));
    lbfgs.load_state(read.values<double>().subspan(IterationNumbers::kCount));
    const auto iteration = lbfgs.iterate();
    const auto after = coordinator.counts();
    auto numbers =
        IterationNumbers{.value = iteration.value,
                         .gradient = iteration.gradient,
                         .step = iteration.step,
                         .evaluations = static_cast<double>(iteration.evaluations),
                         .outcome = static_cast<double>(iteration.outcome),
                         .backups = static_cast<double>(after.backups - before.backups),
                         .repeated = static_cast<double>(after.repeated - before.repeated)}
            .to_numbers();
    const auto state = lbfgs.state();
    numbers.insert(numbers.end(), state.begin(), state.end());
    worker.assign(kLbfgsNumbers, all, numbers).wait(Deadline::after(timeout_));
    coordinator.end_round(round);
  }
}

}  // namespace troika::parallel
