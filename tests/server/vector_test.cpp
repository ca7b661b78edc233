// Operations on whole tables at the servers: equal to the same operations on one process's vectors,
// and executed once, also when messages and servers are lost.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <map>

#include "tests/server/nodes.h"
#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/server/vector_kernels.h"

namespace troika::server {
namespace {

constexpr uint64_t kElements = 101;  // no multiple of the ranges
using Op = VectorOperation;
using Vectors = std::map<std::string, std::vector<double>>;

TableSpec vector_table(const std::string& name, ValueType type = ValueType::float64) {
  return {.name = name, .type = type, .keys = kElements, .spread = 1, .seed = 3};
}

SchedulerOptions vector_options(int replicas, int servers, int workers = 1) {
  return {.tables = {vector_table("x"), vector_table("y"), vector_table("z")},
          .ranges = 7,
          .replicas = replicas,
          .first_servers = servers,
          .first_workers = workers,
          .limit = milliseconds(400),
          .consistency = eventual()};
}

Vectors first_vectors() {
  Vectors vectors;
  for (const char* name : {"x", "y", "z"}) {
    for (Key key = 0; key < kElements; ++key) {
      vectors[name].push_back(initial_value(vector_table(name), key, 0));
    }
  }
  return vectors;
}

// The operations as a reader of their definitions would write them.
std::vector<double> compute_here(Vectors& vectors, const VectorOperations& operations) {
  std::vector<double> numbers;
  for (const auto& [kind, x, y, factor] : operations) {
    auto& first = vectors[x];
    double number = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      if (kind == VectorKind::fill) first[i] = factor;
      if (kind == VectorKind::copy) first[i] = vectors[y][i];
      if (kind == VectorKind::scale) first[i] *= factor;
      if (kind == VectorKind::add) first[i] += factor * vectors[y][i];
      if (kind == VectorKind::dot) number += first[i] * vectors[y][i];
      if (kind == VectorKind::one_norm) number += std::abs(first[i]);
      if (kind == VectorKind::max_norm) number = std::max(number, std::abs(first[i]));
    }
    if (returns_number(kind)) numbers.push_back(number);
  }
  return numbers;
}

VectorOperations all_kinds() {
  return {Op::dot("x", "y"),    Op::add("x", 0.5, "y"),  Op::scale("y", -1.25), Op::dot("x", "y"),
          Op::copy("z", "x"),   Op::add("z", 2, "z"),    Op::one_norm("z"),     Op::max_norm("y"),
          Op::fill("x", 0.125), Op::add("x", 1e-3, "z"), Op::dot("x", "x")};
}

std::vector<double> pull_vector(Worker& worker, const std::string& name) {
  const auto pull = worker.pull(name, KeySpan{0, kElements});
  pull.wait(soon());
  return {pull.values<double>().begin(), pull.values<double>().end()};
}

void expect_near(std::span<const double> got, std::span<const double> expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 1e-12 * std::max(1.0, std::abs(expected[i]))) << i;
  }
}

TEST(ServerVectors, OperationsEqualThoseOfOneProcessWithAnyNumberOfServers) {
  std::vector<std::vector<double>> results;
  for (const int servers : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("{} servers", servers));
    Nodes nodes(vector_options(servers > 1, servers));
    nodes.add_all(servers, 1);
    auto vectors = first_vectors();
    const auto numbers = compute_here(vectors, all_kinds());
    const auto computed = nodes.worker(0).compute(all_kinds());
    computed.wait(soon());
    expect_near(computed.values<double>(), numbers);
    for (const auto& [name, values] : vectors) {
      EXPECT_EQ(pull_vector(nodes.worker(0), name), values) << "elements have the same bits";
    }
    results.emplace_back(computed.values<double>().begin(), computed.values<double>().end());
    EXPECT_EQ(results.back(), results.front()) << "the same bits with any number of servers";
    EXPECT_LT(nodes.worker(0).traffic().request_bytes, 3u * 8 * 7 * kElements * 2)
        << "operations have no values";
  }
}

TEST(ServerVectors, Float32IsRoundedOnceAndSummedInFloat64) {
  auto options = vector_options(0, 2);
  options.tables = {vector_table("x", ValueType::float32), vector_table("y", ValueType::float32)};
  Nodes nodes(options);
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  std::vector<float> x(kElements, 1), y(kElements);
  for (size_t i = 0; i < y.size(); ++i) y[i] = 0.37f * static_cast<float>(i);
  x[0] = 16777216;
  worker.assign("x", KeySpan{0, kElements}, x);
  worker.assign("y", KeySpan{0, kElements}, y);
  const auto computed = worker.compute({Op::one_norm("x"), Op::add("x", 0.7, "y")});
  computed.wait(soon());
  EXPECT_EQ(computed.values<double>()[0], 16777216.0 + kElements - 1);
  const auto pull = worker.pull("x", KeySpan{0, kElements});
  pull.wait(soon());
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = static_cast<double>(x[i]) + 0.7 * static_cast<double>(y[i]);
    EXPECT_EQ(pull.values<float>()[i], static_cast<float>(exact)) << i;
  }
}

// The worker does not wait between calls, so a request that arrives again finds vectors that later
// requests have changed.
void expect_once(Nodes& nodes, int calls, const std::function<void(int)>& after_call = {}) {
  auto vectors = first_vectors();
  std::vector<Handle> handles;
  std::vector<std::vector<double>> expected;
  for (int call = 0; call < calls; ++call) {
    const VectorOperations operations{Op::dot("x", "y"), Op::add("x", 0.25, "y"),
                                      Op::scale("y", -1.01), Op::max_norm("x")};
    expected.push_back(compute_here(vectors, operations));
    handles.push_back(nodes.worker(0).compute(operations));
    // A call without a change of its own is between two that change its vectors.
    expected.push_back(compute_here(vectors, {Op::dot("y", "y")}));
    handles.push_back(nodes.worker(0).compute({Op::dot("y", "y")}));
    if (after_call) after_call(call);
  }
  for (size_t i = 0; i < handles.size(); ++i) {
    handles[i].wait(soon());
    SCOPED_TRACE(fmt::format("call {}", i));
    expect_near(handles[i].values<double>(), expected[i]);
  }
  for (const char* name : {"x", "y"}) {
    expect_near(pull_vector(nodes.worker(0), name), vectors[name]);
  }
}

TEST(ServerVectors, OperationsAreExecutedOnceOnABadNetwork) {
  const test::Faults bad{.drop = 0.3, .duplicate = 0.3, .delay = 0.5};
  for (const uint64_t seed : {1, 2}) {
    Nodes nodes(vector_options(1, 3), seed, bad);
    nodes.add_all(3, 1);
    expect_once(nodes, 25);
  }
}

// The copies have executed the operations and know their numbers.
TEST(ServerVectors, AServerIsLostAtAnyEvent) {
  for (const char* name : {"s0", "s1", "s2"}) {
    for (int events = 0; events < 160; events += 40) {
      SCOPED_TRACE(fmt::format("{} is stopped after {} events", name, events));
      Nodes nodes(vector_options(1, 3), 5, {.drop = 0.1, .delay = 0.2});
      nodes.add_all(3, 1);
      expect_once(nodes, 8, [&](int call) {
        if (call != 4) return;
        for (int i = 0; i < events; ++i) nodes.step();
        nodes.stop(name);
      });
    }
  }
}

// A server that joins gets the numbers with the values.
TEST(ServerVectors, ServersJoin) {
  Nodes nodes(vector_options(1, 2), 5, {.drop = 0.2, .delay = 0.3});
  nodes.add_all(2, 1);
  expect_once(nodes, 12, [&](int call) {
    if (call == 3) nodes.add_server("s9");
    for (int i = 0; i < 30; ++i) nodes.step();
  });
}

TEST(ServerVectors, MaximumKeepsNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> values{1, nan, 3};
  EXPECT_TRUE(std::isnan(reduce<double>(VectorKind::max_norm, std::span(values), {})));
  EXPECT_TRUE(std::isnan(combine(VectorKind::max_norm, nan, 1)));
  EXPECT_TRUE(std::isnan(combine(VectorKind::max_norm, 1, nan)));
}

TEST(ServerVectors, WrongTablesAreRefused) {
  auto options = vector_options(0, 1);
  options.tables.push_back({.name = "longer", .type = ValueType::float64, .keys = kElements + 1});
  options.tables.push_back({.name = "rows", .type = ValueType::float64});
  Nodes nodes(options);
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  EXPECT_ERROR(worker.compute({Op::scale("x", 2), Op::copy("x", "longer")}), ErrorKind::usage,
               "[server] vector operations: tables x and longer differ in type, keys or width");
  EXPECT_ERROR(worker.compute({Op::fill("rows", 2)}), ErrorKind::usage,
               "[server] vector operations: table rows is no vector; got keys=0 width=1, expected "
               "both above 0");
  EXPECT_ERROR(worker.compute({Op::fill("xx", 2)}), ErrorKind::usage,
               "[server] unknown table; got xx, expected x, y, z, longer, rows (did you mean x?)");
  EXPECT_EQ(pull_vector(worker, "x"), first_vectors()["x"]);
  const auto nothing = worker.compute({});
  nothing.wait(soon());
  EXPECT_TRUE(nothing.values<double>().empty());
}

}  // namespace
}  // namespace troika::server
