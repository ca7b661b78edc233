// Where the values of answers go, and requests that overtake others.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <numeric>

#include "tests/server/nodes.h"
#include "tests/support/errors.h"

namespace troika::server {
namespace {

// Each of the 4 ranges has 80,000 bytes of values, which are a message of their own.
constexpr uint64_t kLongKeys = 40'000;
using Doubles = std::vector<double>;

TableSpec long_table() {
  return {.name = "w", .type = ValueType::float64, .keys = kLongKeys};
}

SchedulerOptions long_options(std::vector<TableSpec> tables, int servers = 2, int replicas = 0) {
  return {.tables = std::move(tables),
          .ranges = 4,
          .replicas = replicas,
          .first_servers = servers,
          .limit = milliseconds(400)};
}

Doubles counted(size_t count) {
  Doubles values(count);
  std::iota(values.begin(), values.end(), 1.0);
  return values;
}

std::shared_ptr<Doubles> memory(size_t count) {
  return std::make_shared<Doubles>(count, -1.0);
}

TEST(ServerAnswers, ComeIntoTheCallersMemory) {
  Nodes nodes(long_options({long_table()}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  const auto pushed = counted(kLongKeys);
  const auto all = memory(kLongKeys);
  const auto both = worker.push_pull("w", KeySpan{0, kLongKeys}, pushed, {.into = all});
  // From the middle of one range to that of another one; short answers; a list.
  const auto part = memory(25'000), few = memory(4), listed = memory(3);
  const auto middle = worker.pull("w", KeySpan{5'000, 25'000}, {.into = part});
  const auto small = worker.pull("w", KeySpan{9'998, 4}, {.into = few});
  const std::vector<Key> keys{0, 10'000, kLongKeys - 1};
  const auto list = worker.pull("w", keys, {.into = listed});
  for (const auto& call : {both, middle, small, list}) call.wait(soon());
  EXPECT_EQ(both.values<double>().data(), all->data());
  EXPECT_EQ(middle.values<double>().size(), 25'000u);
  EXPECT_EQ(*all, pushed);
  EXPECT_TRUE(std::ranges::equal(*part, std::span(pushed).subspan(5'000, 25'000)));
  EXPECT_THAT(*few, testing::ElementsAre(9'999, 10'000, 10'001, 10'002));
  EXPECT_THAT(*listed, testing::ElementsAre(1, 10'001, kLongKeys));
  const auto own = worker.pull("w", KeySpan{0, kLongKeys});
  own.wait(soon());
  EXPECT_TRUE(std::ranges::equal(own.values<double>(), pushed)) << "memory of the handle";
}

TEST(ServerAnswers, OfSparseTablesAndStatesComeIntoTheCallersMemory) {
  auto dense = long_table();
  dense.update = parse_update("momentum rate=1 momentum=0.5");
  Nodes nodes(long_options({dense, {.name = "rows", .type = ValueType::float64, .width = 2}}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  const std::vector<Key> keys{3, 1'000, 77'000, 1'000'000, ~Key{0} - 5};
  const auto rows = memory(10), states = memory(3 * kLongKeys);
  const auto values = counted(10);
  worker.push("rows", keys, values);
  worker.push("w", KeySpan{0, kLongKeys}, Doubles(kLongKeys, 3));
  const auto sparse = worker.pull("rows", keys, {.into = rows});
  const auto state = worker.pull_state("w", KeySpan{0, kLongKeys}, {.into = states});
  sparse.wait(soon());
  state.wait(soon());
  EXPECT_EQ(*rows, values);
  // The value, the momentum, and the number of updates.
  for (size_t i = 0; i < kLongKeys; ++i) {
    ASSERT_EQ((*states)[3 * i], -3) << i;
    ASSERT_EQ((*states)[3 * i + 1], 3) << i;
  }
}

TEST(ServerAnswers, ThatAreEncodedComeIntoTheCallersMemory) {
  Nodes nodes(long_options({long_table()}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  worker.set_filters("w", parse_filters("zlib"), parse_filters("half, zlib"));
  const auto values = memory(kLongKeys);
  const auto both =
      worker.push_pull("w", KeySpan{0, kLongKeys}, Doubles(kLongKeys, 0.5), {.into = values});
  both.wait(soon());
  EXPECT_THAT(*values, testing::Each(0.5));
}

TEST(ServerAnswers, NeedMemoryThatFits) {
  auto lengths = long_table();
  lengths.name = "lengths";
  lengths.width = 0;
  Nodes nodes(long_options({long_table(), lengths}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  const KeySpan two{0, 2};
  EXPECT_ERROR(worker.pull("w", two, {.into = memory(3)}), ErrorKind::usage,
               "[server] the pull from table w: the memory for values; got 24 bytes, expected 16 "
               "bytes");
  EXPECT_ERROR(worker.pull("w", two, {.into = std::make_shared<std::vector<float>>(4)}),
               ErrorKind::usage,
               "[server] the pull from table w: the type of the memory for values; got float32, "
               "expected float64");
  const std::string none =
      "memory for values; got memory, expected none, except of reads of tables with a width";
  EXPECT_ERROR(worker.push("w", two, Doubles{1, 2}, {.into = memory(2)}), ErrorKind::usage,
               "[server] the push to table w: " + none);
  EXPECT_ERROR(worker.pull("lengths", two, {.into = memory(2)}), ErrorKind::usage,
               "[server] the pull from table lengths: " + none);
}

// The worker ends at any event of a pull. From then on, nothing is written to the caller's memory.
TEST(ServerAnswers, OfFailedCallsAreNotWritten) {
  bool was_early = true;
  int partly = 0;
  for (int events = 0; was_early; events += 3) {
    SCOPED_TRACE(events);
    Nodes nodes(long_options({long_table()}), 3);
    nodes.add_all(2, 1);
    nodes.worker(0).push("w", KeySpan{0, kLongKeys}, counted(kLongKeys)).wait(soon());
    const auto values = memory(kLongKeys);
    const auto pull = nodes.worker(0).pull("w", KeySpan{0, kLongKeys}, {.into = values});
    for (int i = 0; i < events; ++i) nodes.step();
    was_early = !pull.is_done();
    nodes.end_worker("w0");
    const auto at_end = *values;
    const auto written = std::ranges::count_if(at_end, [](double value) { return value > 0; });
    partly += written > 0 && written < static_cast<int64_t>(kLongKeys);
    nodes.run_for(milliseconds(50));
    ASSERT_EQ(*values, at_end);
    EXPECT_EQ(pull.values<double>().size(), was_early ? 0 : kLongKeys);
  }
  EXPECT_GT(partly, 1) << "calls that had some of their values";
}

// A server is stopped at any event of push-pulls into the same memory.
TEST(ServerAnswers, AreWholeWhenAServerIsLost) {
  bool was_early = true;
  for (int events = 0; was_early; events += 37) {
    SCOPED_TRACE(events);
    Nodes nodes(long_options({long_table()}, 3, 1), 11);
    nodes.add_all(3, 1);
    const auto values = memory(kLongKeys);
    int done = 0;
    for (int i = 0; i < 3; ++i) {
      const auto call = nodes.worker(0).push_pull("w", KeySpan{0, kLongKeys}, Doubles(kLongKeys, 1),
                                                  {.into = values});
      call.then([&done, call] { done += call.error().empty(); });
      if (i < 2) call.wait(soon());
    }
    for (int i = 0; i < events; ++i) nodes.step();
    was_early = done < 3;
    nodes.stop("s1");
    ASSERT_TRUE(nodes.run_until([&] { return done == 3; })) << nodes.scheduler().status();
    EXPECT_THAT(*values, testing::Each(3));
  }
}

TEST(ServerAnswers, AreExactOnABadNetwork) {
  auto options = long_options({long_table()});
  options.limit = milliseconds(4000);  // so many beats are not lost one after the other
  Nodes nodes(options, 5, {.drop = 0.3, .duplicate = 0.3, .delay = 0.5});
  nodes.add_all(2, 2);
  const auto first = memory(kLongKeys), second = memory(kLongKeys);
  for (int i = 1; i <= 8; ++i) {
    const Doubles ones(kLongKeys, 1);
    const KeySpan all{0, kLongKeys};
    const auto one = nodes.worker(0).push_pull("w", all, ones, {.into = first});
    const auto other = nodes.worker(1).push_pull("w", all, ones, {.into = second});
    one.wait(soon());
    other.wait(soon());
    EXPECT_THAT(*first, testing::Each(testing::AllOf(testing::Ge(i), testing::Le(2 * i))));
  }
  nodes.worker(1).pull("w", KeySpan{0, kLongKeys}, {.into = second}).wait(soon());
  EXPECT_THAT(*second, testing::Each(16));
}

// A short request arrives before the longer one that was sent before it, and is executed as soon as
// that one is.
TEST(ServerAnswers, OfRequestsThatOvertakeOthersComeWithoutARepetition) {
  Nodes nodes(long_options({long_table()}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  const auto before = worker.traffic().requests;
  worker.push("w", KeySpan{0, kLongKeys / 4}, Doubles(kLongKeys / 4, 1));
  worker.push("w", KeySpan{0, 1}, Doubles{1});
  const auto pull = worker.pull("w", KeySpan{0, 2});
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), testing::ElementsAre(2, 1));
  EXPECT_EQ(worker.traffic().requests - before, 3u);
}

// The same for the writes that a master sends to a copy. The copy then becomes the master.
TEST(ServerAnswers, OfWritesThatOvertakeOthersAtACopyComeWithoutARepetition) {
  Nodes nodes(long_options({long_table()}, 2, 1));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  worker.push("w", KeySpan{0, kLongKeys}, Doubles(kLongKeys, 1)).wait(soon());
  const auto begin = nodes.endpoint("scheduler").now();
  worker.push("w", KeySpan{0, kLongKeys / 4}, Doubles(kLongKeys / 4, 1));
  worker.push("w", KeySpan{0, 1}, Doubles{1}).wait(soon());
  EXPECT_LT(nodes.endpoint("scheduler").now() - begin, milliseconds(15))
      << "a repetition comes after 20 ms of the simulated clock";
  nodes.stop(nodes.scheduler().map().master(0));
  const auto pull = worker.pull("w", KeySpan{0, 2});
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), testing::ElementsAre(3, 2));
}

}  // namespace
}  // namespace troika::server
