// Filters of workers: what they lose, and what they save.
#include "troika/server/filter.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/server/one_process.h"
#include "tests/support/errors.h"

namespace troika::server {
namespace {

using testing::Each;

std::vector<Key> every_third(uint64_t count) {
  std::vector<Key> keys;
  for (Key key = 0; key < count; ++key) keys.push_back(3 * key);
  return keys;
}

SchedulerOptions one_table(TableSpec spec, int replicas = 0) {
  return {.tables = {std::move(spec)},
          .ranges = 8,
          .replicas = replicas,
          .first_servers = replicas + 1,
          .limit = milliseconds(400),
          .consistency = eventual()};
}

TableSpec sparse_table(const std::string& update = "sum", uint32_t width = 1) {
  return {.name = "w", .type = ValueType::float64, .width = width, .update = parse_update(update)};
}

TEST(ServerFilters, HaveATextForm) {
  for (const char* text :
       {"significant threshold=0.1 shrink=2", "kkt l1=0.5 margin=0.25, cache_keys, zlib",
        "skip probability=0.5 seed=3, fixed bytes=1 seed=0, zlib", "half"}) {
    EXPECT_EQ(to_text(parse_filters(text)), text);
  }
  EXPECT_EQ(parse_filters(""), Filters{});
  EXPECT_ERROR(
      parse_filters("zlibb"), ErrorKind::usage,
      "[server] unknown filter; got zlibb, expected significant, skip, kkt, cache_keys, half, "
      "fixed, zlib (did you mean zlib?)");
  EXPECT_ERROR(parse_filters("kkt l2=1"), ErrorKind::usage,
               "[server] filter kkt does not take this; got l2=1, expected name=number, as in `kkt "
               "l1=0 margin=0`");
}

TEST(ServerFilters, ChainsThatCannotWorkAreRefused) {
  const auto check = [](const char* text, Direction direction = Direction::push) {
    check_filters(parse_filters(text), direction);
  };
  check("kkt l1=1, significant, skip probability=0.5, cache_keys, fixed bytes=3, zlib");
  EXPECT_ERROR(check("zlib, cache_keys"), ErrorKind::usage,
               "[server] the order of filters; got zlib, cache_keys, expected each at most once: "
               "significant, skip, kkt; cache_keys; half or fixed; zlib");
  EXPECT_THROW(check("half, fixed bytes=1"), Error);
  EXPECT_THROW(check("skip probability=0.5, skip probability=0.5"), Error);
  EXPECT_ERROR(
      check("kkt l1=1", Direction::pull), ErrorKind::usage,
      "[server] filter kkt is for pushes; got a chain for pulls, expected cache_keys, half, "
      "fixed, zlib");
  EXPECT_ERROR(check("fixed bytes=4"), ErrorKind::usage,
               "[server] bytes of filter fixed; got 4, expected 1 to 3");
}

// Every chain of lossless filters, on lists of keys.
TEST(ServerFilters, LosslessOnesEqualOneProcess) {
  for (const char* update : {"sgd rate=0.1", "adam rate=0.05"}) {
    std::string chain = "cache_keys, zlib";
    if (std::string_view(update).starts_with("sgd")) chain = "significant threshold=0, " + chain;
    for (const auto& filter : parse_filters(chain)) {
      EXPECT_TRUE(is_lossless(filter, table_with(update, Application::per_step)));
    }
    for (const int servers : {1, 3}) {
      for (const int workers : {1, 2, 4}) {
        expect_equal_to_one_process(update, servers, workers, 0, chain);
      }
    }
  }
  for (const char* chain :
       {"significant threshold=0", "cache_keys", "zlib", "skip probability=1"}) {
    expect_equal_to_one_process("adagrad rate=0.2", 3, 2, 1, chain);
  }
  const test::Faults bad{.drop = 0.3, .duplicate = 0.3, .delay = 0.5};
  expect_equal_to_one_process("adam rate=0.05", 3, 2, 1, "cache_keys, zlib", bad);
  EXPECT_FALSE(
      is_lossless(parse_filters("significant")[0], table_with("adam", Application::per_step)))
      << "a zero changes a value";
  for (const char* bounds : {"admit=2", "rows=50"}) {
    const auto table = parse_table(
        fmt::format("w float64 keys=0 width=2 initial=0 spread=0 seed=0 {} per_push sum", bounds));
    EXPECT_FALSE(is_lossless(parse_filters("significant")[0], table)) << "zeros count as pushes";
  }
}

TEST(ServerFilters, CachedKeysHalveTheTraffic) {
  Nodes nodes(one_table(sparse_table()));
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  worker.set_filters("w", parse_filters("cache_keys"), parse_filters("cache_keys"));
  const auto keys = every_third(4000);
  const auto push = [&](const std::vector<Key>& list) {
    const auto before = worker.traffic().request_bytes;
    worker.push("w", list, std::vector<double>(list.size(), 1)).wait(soon());
    return static_cast<double>(worker.traffic().request_bytes - before);
  };
  const double first = push(keys), second = push(keys);
  EXPECT_LT(second, 0.55 * first);
  EXPECT_EQ(worker.traffic().key_lists_absent, 8u) << "one for each range";
  const auto pull = worker.pull("w", keys);
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), Each(2));
  auto others = keys;
  others.back() += 1;
  EXPECT_GT(push(others), second) << "another list in one of the ranges";
  const auto traffic = worker.traffic();
  EXPECT_GT(traffic.plain_request_bytes, traffic.request_bytes);
  EXPECT_EQ(traffic.key_lists_lacking, 0u);
}

// The lists of a lost master are sent to the new one again.
TEST(ServerFilters, CachedKeysSurviveTheLossOfServers) {
  Nodes nodes(one_table(sparse_table(), 1));
  nodes.add_all(2, 2);
  const auto keys = every_third(200);
  for (int w = 0; w < 2; ++w) nodes.worker(w).set_filters("w", parse_filters("cache_keys, zlib"));
  double sum = 0;
  const auto push = [&] {
    for (int w = 0; w < 2; ++w, ++sum) {
      nodes.worker(w).push("w", keys, std::vector<double>(200, 1)).wait(soon());
    }
  };
  for (int i = 0; i < 3; ++i) push();
  EXPECT_GT(nodes.worker(0).traffic().key_lists_absent, 0u);
  nodes.stop("s0");
  for (int i = 0; i < 3; ++i) push();
  const auto pull = nodes.worker(0).pull("w", keys);
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), Each(sum));
}

// A server that has no room for a list asks for it again.
TEST(ServerFilters, ListsThatAServerHasDroppedAreSentAgain) {
  constexpr size_t kMost = 100 * sizeof(Key) + 2 * 128;
  KeptKeys kept(kMost);
  const auto all = every_third(300);
  const auto list = [&](size_t first, size_t count) {
    return std::span(all).subspan(first, count);
  };
  EXPECT_FALSE(kept.add(1, list(0, 120))) << "too long";
  EXPECT_TRUE(kept.add(2, list(0, 50)));
  EXPECT_TRUE(kept.add(3, list(50, 40)));
  EXPECT_NE(kept.find(2), nullptr);
  EXPECT_TRUE(kept.add(4, list(90, 50)));
  EXPECT_EQ(kept.find(3), nullptr) << "used least recently";
  EXPECT_TRUE(std::ranges::equal(*kept.find(2), list(0, 50)));
  EXPECT_FALSE(kept.add(2, list(1, 50))) << "another list of the same signature";
  EXPECT_LE(kept.bytes(), kMost);
  for (uint64_t signature = 10; signature < 100; ++signature) {
    EXPECT_FALSE(kept.add(signature, {})) << "an empty list";
    kept.add(signature, list(0, 1));
  }
  EXPECT_EQ(kept.find(98 - 7), nullptr) << "short lists count with their nodes";

  // More lists than a server keeps: 20 lists of 1 MiB in one range of 16 MiB.
  constexpr size_t kList = (1 << 20) / sizeof(Key);
  auto options = one_table(sparse_table());
  options.tables[0].keys = 20 * kList;
  options.ranges = 1;
  Nodes nodes(options);
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  worker.set_filters("w", parse_filters("cache_keys"));
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 20; ++i) {
      std::vector<Key> keys(kList);
      for (size_t k = 0; k < kList; ++k) keys[k] = k * 20 + i;
      worker.push("w", keys, std::vector<double>(kList, 1)).wait(soon());
    }
  }
  EXPECT_GT(worker.traffic().key_lists_lacking, 0u);
  const auto pull = worker.pull("w", std::vector<Key>{0, 19, 20 * (kList - 1)});
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), Each(2));
}

TEST(ServerFilters, SignificantValuesAreSentAndOthersAreKept) {
  Nodes nodes(one_table(sparse_table("sum", 2)));
  nodes.add_all(2, 1);
  auto& worker = nodes.worker(0);
  worker.set_filters("w", parse_filters("significant threshold=1"));
  const std::vector<Key> keys{1, 5, 9};
  const auto pull = [&] {
    const auto handle = worker.pull("w", keys);
    handle.wait(soon());
    const auto values = handle.values<double>();
    return std::vector<double>(values.begin(), values.end());
  };
  const std::vector<double> values{0.4, 0, 0.5, -0.3, 2, 0};
  for (int i = 0; i < 2; ++i) worker.push("w", keys, values).wait(soon());
  EXPECT_THAT(pull(), testing::ElementsAre(0, 0, 0, 0, 4, 0)) << "at most 1 is kept";
  worker.push("w", keys, values).wait(soon());
  EXPECT_THAT(pull(), testing::Pointwise(testing::DoubleNear(1e-12),
                                         std::vector<double>{1.2, 0, 1.5, -0.9, 6, 0}));
  EXPECT_EQ(worker.traffic().keys_left_out, 4u);
  worker.push("w", keys, values).wait(soon());
  worker.flush("w").wait(soon());
  EXPECT_THAT(pull(), testing::Pointwise(testing::DoubleNear(1e-12),
                                         std::vector<double>{1.6, 0, 2, -1.2, 8, 0}))
      << "all that was pushed";
}

TEST(ServerFilters, KeptValuesWithSumZeroAreForgotten) {
  Nodes nodes(one_table(sparse_table()));
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  worker.set_filters("w", parse_filters("significant threshold=1"));
  const std::vector<Key> keys{7};
  for (const double value : {0.5, -0.5, 0.75}) {
    worker.push("w", keys, std::vector<double>{value}).wait(soon());
  }
  worker.flush("w").wait(soon());
  const auto pull = worker.pull("w", keys);
  pull.wait(soon());
  EXPECT_THAT(pull.values<double>(), Each(0.75));
}

TEST(ServerFilters, SkippedValuesAreUnbiased) {
  Nodes nodes(one_table(sparse_table()));
  nodes.add_all(1, 1);
  auto& worker = nodes.worker(0);
  worker.set_filters("w", parse_filters("skip probability=0.25"));
  const auto keys = every_third(1000);
  for (int i = 0; i < 10; ++i) {
    worker.push("w", keys, std::vector<double>(keys.size(), 3)).wait(soon());
  }
  const auto pull = worker.pull("w", keys);
  pull.wait(soon());
  double sum = 0;
  for (const double value : pull.values<double>()) sum += value;
  // Each of 10,000 draws has variance 9 * (1/p - 1) = 27; five standard deviations.
  EXPECT_NEAR(sum, 30'000, 5 * std::sqrt(27 * 10'000));
  EXPECT_EQ(worker.traffic().keys, 10'000u);
  EXPECT_NEAR(static_cast<double>(worker.traffic().keys_left_out), 7500, 5 * std::sqrt(1875));
}

TEST(ServerFilters, NarrowValuesAreNearAndAssignmentsAreExact) {
  for (const char* chain : {"half", "fixed bytes=2", "fixed bytes=3, zlib"}) {
    Nodes nodes(one_table(sparse_table()));
    nodes.add_all(1, 1);
    auto& worker = nodes.worker(0);
    const auto keys = every_third(100);
    std::vector<double> values;
    for (size_t i = 0; i < keys.size(); ++i) values.push_back(std::sin(static_cast<double>(i)));
    worker.set_filters("w", parse_filters(chain));
    worker.assign("w", keys, values).wait(soon());
    const auto exact = worker.pull("w", keys);
    exact.wait(soon());
    EXPECT_TRUE(std::ranges::equal(exact.values<double>(), values)) << chain;
    worker.push("w", keys, values).wait(soon());
    worker.set_filters("w", {}, parse_filters(chain));
    const auto pull = worker.pull("w", keys);
    pull.wait(soon());
    double farthest = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      farthest = std::max(farthest, std::fabs(pull.values<double>()[i] - 2 * values[i]));
    }
    EXPECT_GT(farthest, 0) << chain;
    EXPECT_LT(farthest, 2e-3) << chain;
    const auto traffic = worker.traffic();
    EXPECT_LT(traffic.answer_bytes, traffic.plain_answer_bytes);
    EXPECT_LT(traffic.request_bytes, traffic.plain_request_bytes);
  }
}

// L1-regularised least squares, whose optimum has many zeros.
TEST(ServerFilters, KktLeavesOutKeysThatStayZero) {
  const auto optimum = [](const char* chain, uint64_t& sent) {
    auto spec = table_with("proximal_l1 rate=0.15 l1=0.1", Application::per_push);
    spec.spread = 0;
    Nodes nodes(one_table(spec));
    nodes.add_all(1, 1);
    auto& worker = nodes.worker(0);
    worker.set_filters("w", parse_filters(chain));
    std::vector<Key> keys;
    for (Key key = 0; key < kKeys; ++key) keys.push_back(key);
    std::vector<double> w;
    for (int step = 0; step < 400; ++step) {
      const auto pull = worker.pull("w", keys);
      pull.wait(soon());
      w.assign(pull.values<double>().begin(), pull.values<double>().end());
      worker.push("w", keys, row_gradients(0, 1, w)).wait(soon());
    }
    sent = worker.traffic().keys - worker.traffic().keys_left_out;
    return w;
  };
  uint64_t all = 0, few = 0;
  const auto expected = optimum("", all), got = optimum("kkt l1=0.1", few);
  EXPECT_EQ(got, expected) << "with one worker the filter loses nothing";
  EXPECT_GT(std::ranges::count(expected, 0.0), static_cast<int>(kKeys) / 3);
  EXPECT_LT(std::ranges::count(expected, 0.0), static_cast<int>(kKeys));
  EXPECT_LT(few, 4 * all / 5);
}

}  // namespace
}  // namespace troika::server
