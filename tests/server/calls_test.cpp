// Calls of workers on a network that works.
#include <gmock/gmock.h>

#include "tests/server/nodes.h"
#include "tests/support/errors.h"

namespace troika::server {
namespace {

using testing::ElementsAre;

SchedulerOptions tables(std::vector<TableSpec> specs) {
  return {.tables = std::move(specs), .ranges = 16, .limit = milliseconds(500)};
}

TableSpec dense(uint64_t keys, uint32_t width = 1) {
  return {.name = "w", .type = ValueType::float64, .keys = keys, .width = width};
}

TableSpec dense_lengths() {
  auto spec = dense(10, 0);
  spec.name = "lengths";
  return spec;
}

TEST(ServerCalls, PushedValuesArePulled) {
  Nodes nodes(tables({dense(100, 2)}));
  nodes.add_all(3, 1);
  auto& worker = nodes.worker(0);
  std::vector<double> values(200);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  worker.push("w", KeySpan{0, 100}, values);
  const auto all = worker.pull("w", KeySpan{0, 100});
  const auto some = worker.pull("w", std::vector<Key>{3, 50, 99});
  const auto both = worker.push_pull("w", KeySpan{99, 1}, std::vector<double>{0.5, 0.5});
  some.wait(soon());
  all.wait(soon());
  both.wait(soon());
  EXPECT_TRUE(std::ranges::equal(all.values<double>(), values)) << "a pull sees the push before it";
  EXPECT_THAT(some.values<double>(), ElementsAre(6, 7, 100, 101, 198, 199));
  EXPECT_THAT(both.values<double>(), ElementsAre(198.5, 199.5));
}

TEST(ServerCalls, ValuesThatAreKeptAreNotCopied) {
  Nodes nodes(tables({dense(50'000)}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  auto values = std::make_shared<std::vector<double>>(50'000, 1);
  const std::weak_ptr<std::vector<double>> kept = values;
  {
    const auto before = worker.pull("w", KeySpan{0, 1});
    const auto both =
        worker.push_pull("w", KeySpan{0, 50'000}, *values, {.keeps = values, .after = {before}});
    // Before the values are sent. Only this test may do so, to see that they were not copied.
    (*values)[49'999] = 5;
    values.reset();
    EXPECT_FALSE(kept.expired());
    both.wait(soon());
    EXPECT_EQ(both.values<double>()[0], 1);
    EXPECT_EQ(both.values<double>()[49'999], 5);
  }
  EXPECT_TRUE(nodes.run_until([&] { return kept.expired(); }));
}

TEST(ServerCalls, SparseTablesHaveRowsFromTheirFirstPushOn) {
  const TableSpec spec{.name = "rows", .width = 3, .spread = 1, .seed = 4};
  Nodes nodes(tables({spec}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  const std::vector<Key> keys{1, 1'000'000, ~Key{0}};
  const auto first = worker.pull("rows", keys);
  worker.push("rows", keys, std::vector<float>(9, 2));
  const auto second = worker.pull("rows", keys);
  second.wait(soon());
  ASSERT_EQ(first.values<float>().size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    const auto initial =
        static_cast<float>(initial_value(spec, keys[i / 3], static_cast<uint32_t>(i % 3)));
    EXPECT_EQ(first.values<float>()[i], initial);
    EXPECT_EQ(second.values<float>()[i], initial + 2);
  }
  nodes.run_for(milliseconds(200));
  uint64_t rows = 0;
  const auto status = nodes.scheduler().status();
  for (size_t at = 0; (at = status.find(" keys, ", at)) != std::string::npos; ++at) {
    rows += std::stoull(status.substr(status.rfind(' ', at - 1) + 1));
  }
  EXPECT_EQ(rows, 3u) << "a pull makes no rows: " << status;
}

TEST(ServerCalls, SegmentsHaveLengthsOfTheirOwn) {
  auto spec = dense(4, 0);
  spec.update = parse_update("adagrad rate=1 epsilon=0");
  Nodes nodes(tables({spec}));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  const std::vector<uint32_t> lengths{1, 3, 0, 2};
  worker.push("w", KeySpan{0, 4}, std::vector<double>{1, 2, 3, 4, 5, 6}, {.lengths = lengths});
  const auto pull = worker.pull("w", std::vector<Key>{1, 3});
  pull.wait(soon());
  EXPECT_THAT(pull.lengths(), ElementsAre(3, 2));
  EXPECT_THAT(pull.values<double>(), ElementsAre(-1, -1, -1, -1, -1));
  const auto wrong = worker.push("w", KeySpan{1, 1}, std::vector<double>{1},
                                 {.lengths = std::vector<uint32_t>{1}});
  EXPECT_ERROR(
      wrong.wait(soon()), ErrorKind::usage,
      "[server] the push to table w failed: key 1 of table w has another number of values; "
      "got 1, expected 3");
  const auto after = worker.pull("w", KeySpan{0, 1});
  after.wait(soon());
  EXPECT_THAT(after.values<double>(), ElementsAre(-1)) << "a refusal blocks nothing";
}

TEST(ServerCalls, AssignmentReplacesValuesAndState) {
  auto spec = dense(2);
  spec.update = parse_update("momentum rate=1 momentum=0.5");
  Nodes nodes(tables({spec}));
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  worker.push("w", KeySpan{0, 2}, std::vector<double>{4, 4});
  worker.assign("w", KeySpan{0, 1}, std::vector<double>{10});
  const auto both = worker.push_pull("w", KeySpan{0, 2}, std::vector<double>{1, 1});
  both.wait(soon());
  EXPECT_THAT(both.values<double>(), ElementsAre(9, -7)) << "10 - 1, and -4 - (0.5 * 4 + 1)";
}

TEST(ServerCalls, WaitForTheCallsTheyDependOn) {
  Nodes nodes(tables({dense(64), {.name = "v", .type = ValueType::float64, .keys = 1}}));
  nodes.add_all(2, 2);
  const auto push = nodes.worker(0).push("w", KeySpan{0, 64}, std::vector<double>(64, 1));
  const auto pull = nodes.worker(0).pull("v", KeySpan{0, 1}, {.after = {push}});
  bool was_done = false;
  pull.then([&] { was_done = push.is_done(); });
  // Another worker's push reaches the server before the pull that waits.
  nodes.worker(1).push("v", KeySpan{0, 1}, std::vector<double>{5}).wait(soon());
  pull.wait(soon());
  EXPECT_TRUE(was_done);
  EXPECT_LT(push.timestamp(), pull.timestamp());
  const auto empty = nodes.worker(0).pull("w", KeySpan{});
  empty.wait(soon());
  EXPECT_THAT(empty.values<double>(), testing::IsEmpty());
}

TEST(ServerCalls, WrongOnesAreRefusedAtOnce) {
  Nodes nodes(tables({dense(10)}));
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  const auto push = [&](const Keys& keys, const Values& values) { worker.push("w", keys, values); };
  EXPECT_ERROR(worker.pull("W2", KeySpan{0, 1}), ErrorKind::usage,
               "[server] unknown table; got W2, expected w (did you mean w?)");
  EXPECT_ERROR(
      push(KeySpan{9, 2}, std::vector<double>{1, 2}), ErrorKind::usage,
      "[server] the push to table w: no such keys; got 2 keys from 9, expected keys below 10");
  EXPECT_ERROR(
      push(std::vector<Key>{2, 1}, std::vector<double>{1, 2}), ErrorKind::usage,
      "[server] the push to table w: the keys are not ascending; got 1 after 2, expected a "
      "greater one");
  EXPECT_ERROR(push(KeySpan{0, 1}, std::vector<float>{1}), ErrorKind::usage,
               "[server] the push to table w: the values' type; got float32, expected float64");
  EXPECT_ERROR(push(KeySpan{0, 1}, std::vector<double>{1, 2}), ErrorKind::usage,
               "[server] the push to table w: the number of values; got 2, expected 1");
  EXPECT_ERROR(worker.end_step(), ErrorKind::usage,
               "[server] no step has begun (wait for the handle of begin_step())");
  const auto pull = worker.pull("w", KeySpan{0, 1});
  pull.wait(soon());
  EXPECT_ERROR(
      pull.values<float>(), ErrorKind::usage,
      "[server] the values of the pull from table w have another type; got float, expected "
      "double");
}

// Answers that do not fit their request are ignored.
TEST(ServerCalls, MalformedAnswersAreIgnored) {
  Nodes nodes(tables({dense(10), dense_lengths()}));
  nodes.add_all(1, 1);
  const auto pull = nodes.worker(0).pull("w", KeySpan{0, 1});
  const auto lengths = nodes.worker(0).pull("lengths", KeySpan{0, 1});
  const std::vector<char> values(4096, 1);
  const std::vector<uint32_t> many(100, 1);
  for (uint64_t number = 1; number <= 2; ++number) {
    for (size_t size = 0; size < values.size(); size += 72) {
      std::string text;
      write_answer({.worker = 1,
                    .number = number,
                    .lengths = std::span(many).first(size % many.size()),
                    .values = std::span(values).first(size)},
                   {}, {}, 0, text);
      net::send_owned(nodes.endpoint("s0"), "w0", kAnswers,
                      std::make_shared<const std::string>(text));
    }
  }
  pull.wait(soon());
  lengths.wait(soon());
  EXPECT_THAT(pull.values<double>(), ElementsAre(0));
  EXPECT_THAT(lengths.values<double>(), testing::IsEmpty());
}

TEST(ServerCalls, TimeOutsNameTheServer) {
  Nodes nodes(tables({dense(1)}));
  nodes.add_all(1, 1);
  nodes.stop("s0");
  const auto pull = nodes.worker(0).pull("w", KeySpan{0, 1});
  try {
    pull.wait(Deadline::after(milliseconds(300)));
    FAIL() << "it was done";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::timeout);
    EXPECT_THAT(error.what(),
                testing::StartsWith("[server] the pull from table w did not finish in time; got no "
                                    "answer of s0 for range 0 (and 0 other ranges); the scheduler "
                                    "was last heard of "));
  }
  EXPECT_ERROR(pull.wait(soon()), ErrorKind::peer,
               "[server] the pull from table w failed: range 0 was lost with its servers; got 0 "
               "copies, expected at least 1 (keep replicas)");
}

}  // namespace
}  // namespace troika::server
