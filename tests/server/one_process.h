// The same training in one process and on a parameter server: least squares on generated rows.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/server/nodes.h"
#include "troika/base/random.h"

namespace troika::server {

inline constexpr uint64_t kKeys = 40;
inline constexpr int kRows = 24;
inline constexpr int64_t kSteps = 20;

// Returns the least-squares gradient of the rows r with r % workers == index.
inline std::vector<double> row_gradients(int index, int workers, std::span<const double> w) {
  std::vector<double> gradient(kKeys);
  for (int row = index; row < kRows; row += workers) {
    Random random(static_cast<uint64_t>(row) + 1);
    std::vector<double> x(kKeys);
    // Some gradients are zero if a worker has few rows.
    for (auto& value : x) value = random.uniform() < 0.6 ? 0 : random.normal();
    double error = -random.normal();
    for (size_t i = 0; i < kKeys; ++i) error += x[i] * w[i];
    for (size_t i = 0; i < kKeys; ++i) gradient[i] += error * x[i] / kRows;
  }
  return gradient;
}

inline TableSpec table_with(const std::string& update, Application application) {
  return {.name = "w",
          .type = ValueType::float64,
          .keys = kKeys,
          .spread = 1,
          .application = application,
          .update = parse_update(update)};
}

inline std::vector<double> one_process(const TableSpec& spec) {
  const auto update = make_update(spec.update, {});
  std::vector<double> w(kKeys), state(kKeys * static_cast<size_t>(update.states));
  for (Key key = 0; key < kKeys; ++key) w[key] = initial_value(spec, key, 0);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto gradient = row_gradients(0, 1, w);
    update.apply64({w, state, gradient, static_cast<uint64_t>(step) + 1});
  }
  return w;
}

inline std::vector<double> pull_all(Nodes& nodes, Worker& worker) {
  const auto begun = worker.begin_step();
  begun.wait(soon());
  const auto pull = worker.pull("w", KeySpan{0, kKeys});
  pull.wait(soon());
  worker.end_step();
  nodes.run_for(milliseconds(1));
  const auto values = pull.values<double>();
  return {values.begin(), values.end()};
}

inline void expect_equal_to_one_process(const std::string& update, int servers, int workers,
                                        int replicas, const std::string& filters = "",
                                        test::Faults faults = {}) {
  SCOPED_TRACE(
      fmt::format("{}, {} servers, {} workers, filters `{}`", update, servers, workers, filters));
  const auto spec = table_with(update, Application::per_step);
  Nodes nodes({.tables = {spec},
               .ranges = 8,
               .replicas = replicas,
               .first_servers = servers,
               .first_workers = workers},
              7, faults);
  nodes.add_all(servers, workers);
  for (int i = 0; i < workers && !filters.empty(); ++i) {
    auto pull = parse_filters(filters);
    std::erase_if(pull, [](const Filter& filter) {
      return filter.kind == FilterKind::significant || filter.kind == FilterKind::skip;
    });
    nodes.worker(i).set_filters("w", parse_filters(filters), pull);
  }
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (int i = 0; i < workers; ++i) {
    trainers.push_back(std::make_unique<Trainer>(
        nodes.worker(i), "w", kKeys, kSteps,
        [i, workers](int64_t, std::span<const double> w) { return row_gradients(i, workers, w); }));
    if (!filters.empty()) trainers.back()->use_list();
  }
  ASSERT_TRUE(nodes.run_until([&] {
    return std::ranges::all_of(trainers, [](const auto& trainer) { return trainer->is_done(); });
  }));
  for (int i = 1; i < workers; ++i) {
    nodes.worker(i).leave(soon());
  }
  const auto got = pull_all(nodes, nodes.worker(0)), expected = one_process(spec);
  for (Key key = 0; key < kKeys; ++key) EXPECT_NEAR(got[key], expected[key], 1e-10) << key;
}

}  // namespace troika::server
