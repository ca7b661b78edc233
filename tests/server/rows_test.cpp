// Sparse tables whose memory is bounded: hashing, admission by frequency, eviction.
#include <gmock/gmock.h>

#include "tests/server/nodes.h"
#include "tests/support/errors.h"
#include "troika/base/random.h"
#include "troika/server/range.h"

namespace troika::server {
namespace {

using testing::Each;
using testing::ElementsAre;

TableSpec bounded(const std::string& bounds, const std::string& update = "sum") {
  return parse_table("w float64 keys=0 width=2 initial=0.5 spread=0 seed=0 " + bounds +
                     " per_push " + update);
}

SchedulerOptions one_bounded(const TableSpec& spec, uint32_t ranges, int replicas = 0) {
  return {.tables = {spec},
          .ranges = ranges,
          .replicas = replicas,
          .first_servers = replicas + 1,
          .limit = milliseconds(400)};
}

std::vector<double> pull_rows(Worker& worker, const std::vector<Key>& keys) {
  const auto pull = worker.pull("w", keys);
  pull.wait(soon());
  return {pull.values<double>().begin(), pull.values<double>().end()};
}

void push_rows(Worker& worker, const std::vector<Key>& keys, double value) {
  worker.push("w", keys, std::vector<double>(2 * keys.size(), value)).wait(soon());
}

TEST(ServerRows, TablesWithBoundsHaveATextForm) {
  for (const char* bounds : {"hash=100", "admit=3", "rows=50", "admit=3 rows=50"}) {
    const auto spec = bounded(bounds);
    EXPECT_EQ(parse_table(to_text(spec)), spec);
    EXPECT_THAT(to_text(spec), testing::HasSubstr(bounds));
    check_table(spec);
  }
  EXPECT_ERROR(check_table(bounded("admit=256")), ErrorKind::usage,
               "[server] admit of table w; got 256, expected 1 to 255");
  EXPECT_THROW(check_table(bounded("hash=10 rows=5")), Error);
  auto dense = bounded("rows=5");
  dense.keys = 10;
  EXPECT_ERROR(
      check_table(dense), ErrorKind::usage,
      "[server] hash, admit and rows of table w; got keys=10 width=2, expected keys=0 and a "
      "width");
}

TEST(ServerRows, HashedKeysShareRows) {
  const auto spec = bounded("hash=64");
  Nodes nodes(one_bounded(spec, 8));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  Random random(1);
  std::set<Key> some;
  while (some.size() < 300) some.insert(random());
  const std::vector<Key> keys(some.begin(), some.end());
  push_rows(worker, keys, 1);
  std::map<Key, double> expected;
  for (const Key key : keys) ++expected[row_of(spec, key)];
  EXPECT_GT(expected.size(), 55u);
  const auto values = pull_rows(worker, keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(values[2 * i], 0.5 + expected[row_of(spec, keys[i])]) << keys[i];
  }
  nodes.run_for(milliseconds(200));
  EXPECT_THAT(nodes.scheduler().status(), testing::HasSubstr(" 32 keys, "));
}

// Consecutive keys of a hashed table do not have consecutive rows.
TEST(ServerRows, HashedKeysOfAStepShareRows) {
  auto spec = bounded("hash=64");
  spec.application = Application::per_step;
  const std::vector<Table> tables{{spec, make_update(spec.update, {})}};
  Range range(0, 1, tables);
  std::vector<Key> keys;
  for (Key key = 1000; key < 1100; ++key) keys.push_back(key);
  const std::vector<double> values(2 * keys.size(), 1);
  RequestBody body{.keys = keys};
  body.values = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
  const auto message =
      std::make_shared<const std::string>(plain_message({.worker = 1, .step = 0}, body));
  range.write(parse_request(*message), message);
  range.commit(0, {});
  std::map<Key, double> expected;
  for (const Key key : keys) ++expected[row_of(spec, key)];
  const Request pull{.head = {}, .body = {.operation = Operation::pull, .keys = keys}};
  const auto pulled = range.read(pull, {}, false);
  const auto answer = parse_answer(*pulled.head);
  ASSERT_EQ(answer.values.size(), values.size() * sizeof(double));
  for (size_t i = 0; i < keys.size(); ++i) {
    double value = 0;
    std::memcpy(&value, answer.values.data() + 2 * i * sizeof(double), sizeof(double));
    EXPECT_EQ(value, 0.5 + expected[row_of(spec, keys[i])]) << keys[i];
  }
}

TEST(ServerRows, KeysAreAdmittedByTheirNumberOfPushes) {
  Nodes nodes(one_bounded(bounded("admit=3"), 4));
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  const std::vector<Key> often{1, 1000, 77'777}, once{2, 3};
  push_rows(worker, once, 1);
  for (int i = 0; i < 2; ++i) push_rows(worker, often, 1);
  EXPECT_THAT(pull_rows(worker, often), Each(0.5)) << "two pushes are only counted";
  for (int i = 0; i < 3; ++i) push_rows(worker, often, 1);
  EXPECT_THAT(pull_rows(worker, often), Each(3.5));
  EXPECT_THAT(pull_rows(worker, once), Each(0.5));
  worker.assign("w", once, std::vector<double>(4, 9)).wait(soon());
  push_rows(worker, once, 1);
  EXPECT_THAT(pull_rows(worker, once), Each(10)) << "an assignment admits its keys";
}

// The rows are those of a list in which every push moves its key to the end.
TEST(ServerRows, TheRowPushedLeastRecentlyMakesRoom) {
  const auto spec = bounded("rows=10", "momentum rate=-1 momentum=0.5");
  Nodes nodes(one_bounded(spec, 1));
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  std::vector<Key> recent;
  std::map<Key, std::pair<double, double>> rows;  // value and momentum
  Random random(4);
  for (int i = 0; i < 500; ++i) {
    const Key key = random.below(16);
    if (std::erase(recent, key) == 0) {
      if (recent.size() == 10) {
        rows.erase(recent.front());
        recent.erase(recent.begin());
      }
      rows[key] = {0.5, 0};
    }
    recent.push_back(key);
    auto& [value, momentum] = rows[key];
    momentum = 0.5 * momentum + 1;
    value += momentum;
    push_rows(worker, {key}, 1);
  }
  for (Key key = 0; key < 16; ++key) {
    const double expected = rows.contains(key) ? rows[key].first : 0.5;
    EXPECT_THAT(pull_rows(worker, {key}), Each(expected)) << key;
  }
  nodes.run_for(milliseconds(200));
  EXPECT_THAT(nodes.scheduler().status(), testing::HasSubstr(" 10 keys, "));
}

// Copies admit and evict the same keys as their masters, before and after they are made.
TEST(ServerRows, CopiesHaveTheSameRows) {
  const auto spec = bounded("admit=2 rows=40", "adagrad rate=0.1");
  Nodes nodes(one_bounded(spec, 4, 1));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  Random random(6);
  std::vector<Key> all;
  for (Key key = 0; key < 100; ++key) all.push_back(key);
  const auto push_some = [&](int count) {
    for (int i = 0; i < count; ++i) push_rows(worker, {random.below(100)}, 1);
  };
  push_some(200);
  nodes.stop("s0");
  push_some(50);  // s1 is alone.
  nodes.add_server("s2");
  ASSERT_TRUE(nodes.run_until([&] {
    const auto map = nodes.scheduler().map();
    return std::ranges::all_of(map.ranges, [](const auto& r) { return r.holders.size() == 2; });
  }));
  push_some(200);
  const auto values = pull_rows(worker, all);
  nodes.stop("s1");
  EXPECT_EQ(pull_rows(worker, all), values);
  EXPECT_GT(std::ranges::count_if(values, [](double v) { return v != 0.5; }), 40);
}

TEST(ServerRows, MalformedCopiesAreErrors) {
  const auto spec = bounded("admit=2 rows=40");
  const std::vector<Table> tables{{spec, make_update(spec.update, {})}};
  Range range(0, 1, tables);
  for (Key key = 0; key < 30; ++key) {
    const std::vector<Key> keys{key};
    const std::vector<double> values{1, 1};
    RequestBody body{.keys = keys};
    body.values = {reinterpret_cast<const char*>(values.data()), 16};
    for (int i = 0; i < 2; ++i) {
      const auto message = std::make_shared<const std::string>(plain_message({.worker = 1}, body));
      range.write(parse_request(*message), message);
    }
  }
  const auto copy = range.save();
  Random random(7);
  int errors = 0;
  for (int i = 0; i < 3000; ++i) {
    auto text = copy.substr(0, copy.size() - random.below(3));
    for (int k = 0; k < 3; ++k) text[random.below(text.size())] = static_cast<char>(random());
    Range other(0, 1, tables);
    try {
      other.load(text);
      other.save();
    } catch (const Error&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 1000);
}

}  // namespace
}  // namespace troika::server
