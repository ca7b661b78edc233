// Summation servers and their workers on a simulated network.
#include "troika/server/summation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/server/sums.h"
#include "tests/support/errors.h"
#include "troika/layout/summation.h"
#include "troika/server/value_coding.h"

namespace troika::server {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

template <typename T>
void expect_means(int workers, int spares, uint64_t seed) {
  SCOPED_TRACE(fmt::format("{} workers, {} spares, seed {}", workers, spares, seed));
  constexpr size_t kCount = 1000, kPiece = 64;
  const auto type = sizeof(T) == 4 ? ValueType::float32 : ValueType::float64;
  Sums sums(workers, spares, seed % 2 == 0 ? 0 : 3 * kPiece * sizeof(T), seed, {}, {},
            seed < 2 ? 0 : 2 * kPiece * sizeof(T));
  Random random(seed);
  for (uint64_t round = 0; round < 3; ++round) {
    std::vector<std::vector<T>> values;
    for (int w = 0; w < workers; ++w) {
      values.push_back(numbers<T>(static_cast<size_t>(w), kCount, round));
    }
    std::vector<T> means(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      T sum = values[0][i];
      for (size_t w = 1; w < values.size(); ++w) sum += values[w][i];
      means[i] = sum / static_cast<T>(workers);
    }
    for (size_t w = 0; w < values.size(); ++w) {
      std::vector<SummationPiece> pieces;
      for (size_t begin = 0; begin < kCount; begin += kPiece) {
        const size_t key = begin / kPiece;
        pieces.push_back({.key = key,
                          .server = key % static_cast<size_t>(workers + spares),
                          .priority = static_cast<int64_t>(random() % 5),
                          .type = type,
                          .values = bytes_of(values[w], begin, std::min(kPiece, kCount - begin))});
      }
      sums.client(w).push(std::move(pieces));
      for (uint64_t events = random() % 200; events > 0; --events) {
        sums.network().step(sums.network().now() + milliseconds(1));
      }
    }
    sums.wait();
    for (const auto& one : values) EXPECT_TRUE(one == means) << "bit by bit, in round " << round;
  }
}

TEST(SummationServers, MeansDoNotDependOnOrders) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (const int workers : {1, 2, 3, 5}) {
      expect_means<float>(workers, static_cast<int>(seed) % 3, seed);
      expect_means<double>(workers, static_cast<int>(seed) % 3, seed);
    }
  }
}

// Workers that push in different orders do not wait for each other for ever.
TEST(SummationServers, FastWorkersDoNotGetFarAhead) {
  constexpr size_t kPieces = 20, kBytes = 256, kLead = 3 * kBytes;
  Sums sums(2, 0, 0, 1, {}, {}, kLead);
  std::vector<std::vector<float>> values{std::vector<float>(kPieces * kBytes / 4, 1),
                                         std::vector<float>(kPieces * kBytes / 4, 3)};
  const auto push = [&](size_t worker, bool is_reversed) {
    std::vector<SummationPiece> pieces;
    for (size_t i = 0; i < kPieces; ++i) {
      pieces.push_back({.key = i,
                        .server = 0,
                        .priority = static_cast<int64_t>(is_reversed ? i : 0),
                        .values = bytes_of(values[worker], i * kBytes / 4, kBytes / 4)});
    }
    sums.client(worker).push(std::move(pieces));
  };
  push(0, false);
  const auto end = sums.network().now() + milliseconds(100);
  while (sums.network().step(end)) {
  }
  EXPECT_EQ(sums.server(0).traffic().received_bytes, kLead);
  push(1, true);
  sums.wait();
  for (const auto& one : values) EXPECT_THAT(one, testing::Each(2));
}

// Each value is rounded on its way to the server and on its way back. Values that do not fit go
// plain, and all workers get the same bits.
TEST(SummationServers, ValuesOfHalfTheBytesLoseBitsOnly) {
  constexpr size_t kCount = 100;
  for (const float large : {1000.0F, 1e6F}) {
    Sums sums(2, 0, 0, 1, {}, {.form = SumForm::half});
    std::vector<std::vector<float>> values{numbers<float>(0, kCount, 0),
                                           numbers<float>(1, kCount, 0)};
    values[0][7] = large;
    const auto before = values;
    for (size_t w = 0; w < 2; ++w) {
      sums.client(w).push({{.key = 0, .values = bytes_of(values[w], 0, kCount)}});
    }
    sums.wait();
    EXPECT_TRUE(values[0] == values[1]);
    const bool fits = large < 65504;
    for (size_t i = 0; i < kCount; ++i) {
      const auto sent = [&](size_t w) {
        return fits || w == 1 ? from_half(to_half(before[w][i])) : before[w][i];
      };
      const float mean = (sent(0) + sent(1)) / 2;
      EXPECT_EQ(values[0][i], fits ? from_half(to_half(mean)) : mean) << i;
    }
    EXPECT_EQ(sums.client(0).traffic().sent_bytes, kCount * (fits ? 2 : 4));
    EXPECT_EQ(sums.client(1).traffic().sent_bytes, kCount * 2);
    EXPECT_EQ(sums.client(1).traffic().received_bytes, kCount * (fits ? 2 : 4));
  }
}

// The bytes that each machine sends to others and receives, by the counters, against section 4.1 of
// the paper.
TEST(SummationServers, BytesAreThoseOfTheFormula) {
  constexpr int64_t kBytes = 60'000, kPartition = 512;
  for (int n = 2; n <= 6; ++n) {
    for (int k = 0; k <= n; ++k) {
      SCOPED_TRACE(fmt::format("{} workers, {} spares", n, k));
      const auto shares = layout::split_sums(n, k).shares();
      const auto partitions =
          layout::partition_sums(std::vector<int64_t>{kBytes}, kPartition, shares);
      Sums sums(n, k);
      std::vector<std::vector<float>> values;
      for (int w = 0; w < n; ++w) {
        values.push_back(numbers<float>(static_cast<size_t>(w), kBytes / sizeof(float), 0));
      }
      for (int w = 0; w < n; ++w) {
        std::vector<SummationPiece> pieces;
        for (size_t key = 0; key < partitions.size(); ++key) {
          const auto& part = partitions[key];
          pieces.push_back({.key = key,
                            .server = part.server,
                            .values = bytes_of(values[static_cast<size_t>(w)],
                                               static_cast<size_t>(part.offset) / sizeof(float),
                                               static_cast<size_t>(part.bytes) / sizeof(float))});
        }
        sums.client(static_cast<size_t>(w)).push(std::move(pieces));
      }
      sums.wait();
      const double m = kBytes, d = n * n + k * n - 2 * k;
      for (int s = 0; s < n + k; ++s) {
        const double share = s < k ? 2 * (n - 1) / d * m : (n - k) / d * m;
        const auto traffic = sums.server(static_cast<size_t>(s)).traffic();
        EXPECT_NEAR(static_cast<double>(traffic.received_bytes) / n, share, kPartition) << s;
        EXPECT_EQ(traffic.sent_bytes, traffic.received_bytes) << s;
      }
      for (int w = 0; w < n; ++w) {
        auto& client = sums.client(static_cast<size_t>(w));
        EXPECT_EQ(client.traffic().sent_bytes, static_cast<uint64_t>(kBytes));
        EXPECT_EQ(client.traffic().received_bytes, static_cast<uint64_t>(kBytes));
        // The messages between a worker and its own machine's server do not cross the link.
        const auto own = static_cast<size_t>(k + w);
        const auto beside = sums.server(own).traffic().sent_bytes;
        const double link =
            static_cast<double>(client.traffic().sent_bytes - client.traffic(own).sent_bytes +
                                beside / static_cast<uint64_t>(n) * static_cast<uint64_t>(n - 1));
        EXPECT_NEAR(link, m + (n - 2) * (n - k) / d * m, n * kPartition);
      }
    }
  }
}

// The first layers' gradients come last, and are used first. Returns when their means
// were there, and the most bytes in flight.
std::pair<net::Duration, uint64_t> time_of_last_pushed(bool has_priorities, size_t credit) {
  constexpr size_t kPieces = 40, kCount = 2500;
  Sums sums(2, 0, credit, 1, {.bytes_per_second = 1e6});
  std::vector<std::vector<float>> values{numbers<float>(0, kPieces * kCount, 0),
                                         numbers<float>(1, kPieces * kCount, 0)};
  net::Duration first_layer{0};
  for (size_t w = 0; w < 2; ++w) {
    for (size_t key = 0; key < kPieces; ++key) {
      const bool is_first_layer = key + 1 == kPieces && w == 0;
      sums.client(w).push({{.key = key,
                            .server = key % 2,
                            .priority = has_priorities ? static_cast<int64_t>(key) : 0,
                            .values = bytes_of(values[w], key * kCount, kCount),
                            .done = [&sums, &first_layer, is_first_layer] {
                              if (is_first_layer) first_layer = sums.network().now();
                            }}});
    }
  }
  sums.wait();
  return {first_layer, sums.client(0).traffic().most_in_flight_bytes};
}

TEST(SummationServers, PrioritiesBringTheFirstLayersEarlier) {
  constexpr size_t kCredit = 30'000;
  const auto [early, in_flight] = time_of_last_pushed(true, kCredit);
  const auto [late, also_in_flight] = time_of_last_pushed(false, kCredit);
  EXPECT_LT(early, late / 2);
  EXPECT_EQ(in_flight, kCredit) << "three pieces at a time, and no more";
  EXPECT_EQ(also_in_flight, kCredit);
  EXPECT_EQ(time_of_last_pushed(true, 0).second, 40u * 10'000u) << "no limit";
  EXPECT_EQ(time_of_last_pushed(true, 5000).second, 10'000u) << "one that exceeds the credit";
}

TEST(SummationServers, FailuresNameWhatWasLost) {
  std::vector<float> values(100, 1);
  const auto piece = [&](uint64_t key, size_t server, size_t count = 100) {
    return std::vector<SummationPiece>{
        {.key = key, .server = server, .values = bytes_of(values, 0, count)}};
  };
  const std::string what = "[server] summation servers cannot average gradients; got ";
  {
    Sums sums(3, 0);
    for (size_t w = 0; w < 2; ++w) sums.client(w).push(piece(0, 1));
    EXPECT_EQ(sums.error_of(0, milliseconds(50)),
              "[server] means of gradients did not come in time; got 1 missing, one of them of s1, "
              "expected all workers to push, and all summation servers to answer");
  }
  {
    Sums sums(3, 0);
    for (size_t w = 0; w < 2; ++w) sums.client(w).push(piece(0, 1));
    sums.network().cut("w2", "s1");
    for (size_t w = 0; w < 2; ++w) {
      EXPECT_THAT(sums.error_of(w), HasSubstr(what + "s1: w2 is lost: ")) << w;
    }
  }
  {
    // The worker is lost before the others push.
    Sums sums(2, 0);
    sums.client(0).push(piece(0, 1));
    sums.client(1).push(piece(0, 1));
    sums.wait();
    sums.network().cut("w1", "s1");
    sums.network().step(sums.network().now() + milliseconds(50));
    sums.client(0).push(piece(0, 1));
    EXPECT_THAT(sums.error_of(0), HasSubstr(what + "s1: w1 is lost: "));
  }
  {
    Sums sums(2, 1);
    sums.client(0).push(piece(0, 0));
    sums.network().cut("w0", "s0");
    EXPECT_THAT(sums.error_of(0), HasSubstr(what + "s0 is lost: "));
    EXPECT_THAT(sums.error_of(0), HasSubstr(what + "s0 is lost: ")) << "for good";
  }
  {
    Sums sums(2, 0);
    sums.client(0).push(piece(7, 0, 100));
    sums.client(1).push(piece(7, 0, 99));
    const auto error = sums.error_of(0);
    EXPECT_THAT(error, HasSubstr("400 bytes of float32 for round 0 of 2 workers at w0"));
    EXPECT_THAT(error, HasSubstr("396 bytes of float32 for round 0 of 2 workers at w1"));
    EXPECT_EQ(sums.error_of(1), error);
  }
  {
    // Values may be freed after drop(), and what comes back is not written.
    Sums sums(2, 0);
    sums.client(0).push(piece(0, 0));
    sums.client(0).drop();
    sums.client(1).push(piece(0, 0));
    EXPECT_EQ(sums.error_of(0), what + "gradients were dropped");
  }
}

// The server would take the second push for another round, and its answer would come to the first.
TEST(SummationServers, AKeyIsPushedOnceAtATime) {
  Sums sums(2, 0);
  std::vector<std::vector<float>> values(2, std::vector<float>(10, 1));
  std::vector<float> others(10);
  EXPECT_TRUE(sums.client(0).is_idle());
  sums.client(0).push({{.key = 3, .values = bytes_of(values[0], 0, 10)}});
  EXPECT_FALSE(sums.client(0).is_idle());
  EXPECT_THROW(sums.client(0).push({{.key = 3, .values = bytes_of(others, 0, 10)}}), CheckError);
  sums.client(1).push({{.key = 3, .values = bytes_of(values[1], 0, 10)}});
  sums.wait();
  EXPECT_TRUE(sums.client(0).is_idle());
  EXPECT_THAT(values[0], testing::Each(1));
}

}  // namespace
}  // namespace troika::server
