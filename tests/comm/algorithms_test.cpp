// The all-reduce algorithms against the serial sum, and the bytes that they send against their
// formulas.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "troika/base/error.h"
#include "troika/comm/local/local.h"

namespace troika::comm {
namespace {

constexpr std::array kAlgorithms{Algorithm::ring, Algorithm::recursive_doubling,
                                 Algorithm::rabenseifner, Algorithm::double_tree,
                                 Algorithm::hierarchical};

struct Case {
  int ranks;
  std::vector<int> nodes;
};

std::vector<Case> cases() {
  return {{1, {}},
          {2, {}},
          {3, {}},
          {4, {}},
          {5, {}},
          {6, {}},
          {7, {}},
          {8, {}},
          {4, {0, 0, 1, 1}},
          {4, {0, 1, 0, 1}},
          {6, {0, 0, 1, 1, 2, 2}},
          {5, {0, 0, 0, 1, 1}},
          {3, {0, 1, 2}}};
}

TEST(Algorithms, EveryOneGivesTheSumAndTheSameBits) {
  for (const auto& [ranks, nodes] : cases()) {
    for (const auto algorithm : kAlgorithms) {
      const auto body = [&](const Group& group) {
        for (const int64_t count : {0, 1, 2, 3, 7, 1000, 40'003}) {
          const auto values = [&](int rank) {
            return at::sin(at::arange(count, at::kFloat) + rank);
          };
          auto exact = at::zeros({count}, at::kDouble);
          auto magnitude = at::zeros({count}, at::kDouble);
          for (int r = 0; r < group.size(); ++r) {
            exact += values(r).to(at::kDouble);
            magnitude += values(r).abs().to(at::kDouble);
          }
          auto tensor = values(group.rank());
          group.all_reduce(tensor, ReduceOp::average, {.algorithm = algorithm});
          exact /= group.size();
          // Each of the n - 1 additions and the division rounds once (Higham, section 4.2).
          const double bound = group.size() * std::exp2(-24);
          EXPECT_TRUE(((tensor - exact).abs() <= bound * magnitude).all().item<bool>())
              << name(algorithm) << " x " << count << " on " << ranks;
          auto all = at::empty({group.size(), count});
          group.all_gather(all, tensor);
          for (int r = 0; r < group.size(); ++r) EXPECT_TRUE(all[r].equal(all[0]));
          auto whole = at::full({count}, group.rank() + 1, at::kInt);
          group.all_reduce(whole, ReduceOp::product, {.algorithm = algorithm});
          EXPECT_TRUE(whole.eq(std::tgamma(group.size() + 1)).all().item<bool>());
        }
      };
      local::run_ranks(local::make(ranks, nodes), body);
    }
  }
}

TEST(Algorithms, SegmentsAreKeptApart) {
  for (const auto algorithm : kAlgorithms) {
    local::run(3, [&](const Group& group) {
      auto tensor = at::arange(2'000'003, at::kInt) + group.rank();
      group.all_reduce(tensor, ReduceOp::sum, {.algorithm = algorithm});
      EXPECT_TRUE(tensor.equal(at::arange(2'000'003, at::kInt) * 3 + 3)) << name(algorithm);
    });
  }
}

Counters counted(Group group, const at::Tensor& tensor, Algorithm algorithm) {
  const auto before = group.counters();
  group.all_reduce(tensor, ReduceOp::sum, {.algorithm = algorithm});
  const auto after = group.counters();
  return {after.messages - before.messages, after.bytes - before.bytes,
          after.messages_between_nodes - before.messages_between_nodes,
          after.bytes_between_nodes - before.bytes_between_nodes};
}

// n divides the count, and a block fits into one segment.
constexpr uint64_t kModelElements = 5040;
constexpr uint64_t kBytes = kModelElements * 4;

TEST(Algorithms, RingSendsTwoTimesNMinusOneBlocks) {
  for (const int n : {2, 3, 4, 7}) {
    local::run(n, [&](const Group& group) {
      const auto sent = counted(group, at::ones({kModelElements}), Algorithm::ring);
      const auto ranks = static_cast<uint64_t>(n);
      EXPECT_EQ(sent.messages, 2 * (ranks - 1));
      EXPECT_EQ(sent.bytes, 2 * (ranks - 1) * kBytes / ranks);
    });
  }
}

TEST(Algorithms, RecursiveDoublingSendsEverythingLogNTimes) {
  for (const auto& [n, rounds] : {std::pair(2, 1), {4, 2}, {8, 3}}) {
    local::run(n, [&](const Group& group) {
      const auto sent = counted(group, at::ones({kModelElements}), Algorithm::recursive_doubling);
      EXPECT_EQ(sent.messages, static_cast<uint64_t>(rounds));
      EXPECT_EQ(sent.bytes, static_cast<uint64_t>(rounds) * kBytes);
    });
  }
}

TEST(Algorithms, RabenseifnerSendsTheLeastBytesInTwoLogNMessages) {
  for (const auto& [n, rounds] : {std::pair(2, 1), {4, 2}, {8, 3}}) {
    local::run(n, [&](const Group& group) {
      const auto sent = counted(group, at::ones({kModelElements}), Algorithm::rabenseifner);
      const auto ranks = static_cast<uint64_t>(n);
      EXPECT_EQ(sent.messages, 2 * static_cast<uint64_t>(rounds));
      EXPECT_EQ(sent.bytes, 2 * (ranks - 1) * kBytes / ranks);
    });
  }
}

// In total, a tree sends its half once up and once down each edge.
TEST(Algorithms, TheTreesSendTwoTimesNMinusOneTimesTheBytesInAll) {
  for (const int n : {2, 3, 4, 5, 6, 7, 8}) {
    local::run(n, [&](const Group& group) {
      const auto sent = counted(group, at::ones({kModelElements}), Algorithm::double_tree);
      auto total = at::tensor({static_cast<int64_t>(sent.bytes)});
      group.all_reduce(total);
      EXPECT_EQ(total.item<int64_t>(), 2 * (n - 1) * static_cast<int64_t>(kBytes));
      // No rank is an inner node of both trees: it has at most two children, one parent, and one
      // parent as a leaf.
      EXPECT_LE(sent.bytes, 2 * kBytes);
    });
  }
}

TEST(Algorithms, HierarchicalSendsOnlyTheFormulasBytesBetweenNodes) {
  for (const auto& [nodes, size] : {std::pair<std::vector<int>, int>{{0, 0, 1, 1}, 2},
                                    {{0, 0, 0, 1, 1, 1}, 2},
                                    {{0, 0, 1, 1, 2, 2}, 3}}) {
    const int n = static_cast<int>(nodes.size());
    local::run_ranks(local::make(n, nodes), [&](const Group& group) {
      group.assume_links(at::tensor({1e-6, 1e-10, 1e-6, 1e-8, 1e-10}, at::kDouble));
      const auto sent = counted(group, at::ones({kModelElements}), Algorithm::hierarchical);
      auto by_node = at::zeros({size}, at::kLong);
      by_node[group.nodes()[static_cast<size_t>(group.rank())]] =
          static_cast<int64_t>(sent.bytes_between_nodes);
      group.all_reduce(by_node);
      const auto formula = 2 * (size - 1) * static_cast<int64_t>(kBytes) / size;
      EXPECT_TRUE(by_node.eq(formula).all().item<bool>()) << by_node;
    });
  }
}

// Returns the maximum number of roundings of an element in a 16-bit sum.
int levels(Algorithm algorithm, int ranks, int nodes) {
  const int rounds = static_cast<int>(std::bit_width(static_cast<unsigned>(ranks - 1)));
  switch (algorithm) {
    case Algorithm::ring:
    case Algorithm::automatic:
    case Algorithm::hierarchical:
      return nodes == 1 ? 1 : 2;
    default:
      return rounds;
  }
}

struct Topology {
  int nodes;
  int per_node;
};

// 16-bit types send half of float32's bytes, and are rounded once a level.
TEST(Algorithms, HalvesSendHalfOfTheBytesOnEveryTopology) {
  std::vector<Algorithm> algorithms(kAlgorithms.begin(), kAlgorithms.end());
  algorithms.push_back(Algorithm::automatic);
  for (const auto& [size, per_node] : {Topology{1, 8}, Topology{2, 2}, Topology{4, 4}}) {
    const int n = size * per_node;
    std::vector<int> nodes;
    for (int r = 0; r < n; ++r) nodes.push_back(r / per_node);
    local::run_ranks(local::make(n, nodes), [&](const Group& group) {
      // With these links, the choice is ring on one node and hierarchical on several.
      group.assume_links(at::tensor({1e-6, 1e-10, 1e-6, 1e-9, 1e-10}, at::kDouble));
      const auto values = [](int rank) {
        return at::sin(at::arange(static_cast<int64_t>(4 * kModelElements), at::kDouble) +
                       rank * 0.7);
      };
      for (const auto algorithm : algorithms) {
        // Sums over all ranks: bytes, bytes between nodes, messages between nodes.
        std::map<at::ScalarType, at::Tensor> sent;
        for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
          auto exact = at::zeros({static_cast<int64_t>(4 * kModelElements)}, at::kDouble);
          auto magnitude = at::zeros_like(exact);
          for (int r = 0; r < n; ++r) {
            exact += values(r).to(type).to(at::kDouble);
            magnitude += values(r).to(type).to(at::kDouble).abs();
          }
          auto tensor = values(group.rank()).to(type);
          const auto counters = counted(group, tensor, algorithm);
          sent[type] = at::tensor({static_cast<int64_t>(counters.bytes),
                                   static_cast<int64_t>(counters.bytes_between_nodes),
                                   static_cast<int64_t>(counters.messages_between_nodes)});
          group.all_reduce(sent[type]);
          auto all = at::empty({n, tensor.numel()}, type);
          group.all_gather(all, tensor);
          for (int r = 1; r < n; ++r) EXPECT_TRUE(all[r].equal(all[0]));
          if (type == at::kFloat) continue;
          // Half a unit in the last place, relative; and of the smallest normal number.
          const double rounding = std::exp2(type == at::kHalf ? -11 : -8);
          const double bound = levels(algorithm, n, size) * rounding * (1 + n * rounding);
          const auto error = (tensor.to(at::kDouble) - exact).abs();
          EXPECT_TRUE((error <= bound * magnitude + std::exp2(-24)).all().item<bool>())
              << name(algorithm) << " " << c10::toString(type) << " on " << size << " nodes";
        }
        for (const auto type : {at::kHalf, at::kBFloat16}) {
          EXPECT_EQ(2 * sent[type][0].item<int64_t>(), sent[at::kFloat][0].item<int64_t>());
          EXPECT_LE(2 * sent[type][1].item<int64_t>(), sent[at::kFloat][1].item<int64_t>())
              << name(algorithm) << " " << c10::toString(type) << " on " << size
              << " nodes: " << sent[type] << sent[at::kFloat];
        }
        if (size > 1 && algorithm == Algorithm::automatic) {
          EXPECT_EQ(sent[at::kHalf][1].item<int64_t>(),
                    2 * (size - 1) * static_cast<int64_t>(4 * kModelElements) * 2)
              << "2(M-1)/M S bytes a node";
        }
      }
    });
  }
}

TEST(Algorithms, ReduceScatterAndAllGatherSendEachBlockOnceToANode) {
  for (const auto& nodes : {std::vector<int>{0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 1, 2, 0, 1, 2}}) {
    const auto n = static_cast<int64_t>(nodes.size());
    const int64_t size = 1 + std::ranges::max(nodes);
    local::run_ranks(local::make(static_cast<int>(n), nodes), [&](const Group& group) {
      const auto between = [&](auto&& call) {
        const auto before = group.counters().bytes_between_nodes;
        call();
        auto sum =
            at::tensor({static_cast<int64_t>(group.counters().bytes_between_nodes - before)});
        group.all_reduce(sum);
        return sum.item<int64_t>();
      };
      const auto whole = at::ones({n * 1000});
      const auto own = at::ones({1000});
      const int64_t formula = (size - 1) * whole.numel() * 4;
      EXPECT_EQ(between([&] { group.reduce_scatter(own, whole); }), formula);
      EXPECT_EQ(between([&] { group.all_gather(whole, own); }), formula);
      EXPECT_EQ(between([&] { group.broadcast(whole, 1); }), formula);
    });
  }
}

// Another run of the same ranks that assumes a run's links chooses as it did.
TEST(Algorithms, TheChoiceCanBeMadeAgain) {
  const auto all_reduce = [](const Group& group) {
    const auto before = group.counters();
    group.all_reduce(at::ones({64 << 10}));
    const auto after = group.counters();
    return std::pair(after.messages - before.messages, after.bytes - before.bytes);
  };
  // As if bytes cost nothing, then as if messages did.
  const auto few_messages = at::tensor({1.0, 1e12, 1.0, 1e12, 1e-12}, at::kDouble);
  const auto few_bytes = at::tensor({1e-12, 1.0, 1e-12, 1.0, 1e-12}, at::kDouble);
  local::run(8, [&](const Group& group) {
    const auto whole = *group.split(0);
    group.assume_links(few_messages);
    const auto doubling = all_reduce(group);
    EXPECT_EQ(doubling.first, 3u) << "recursive doubling";
    EXPECT_TRUE(group.links().equal(few_messages));
    EXPECT_EQ(all_reduce(*group.split(0)), doubling) << "it took over the links";
    const auto pair = *group.split(group.rank() / 4);
    EXPECT_FALSE(pair.links().equal(few_messages)) << "links of its own";
    group.assume_links(few_bytes);
    EXPECT_LT(all_reduce(group).second, doubling.second);
    EXPECT_FALSE(whole.links().equal(few_messages)) << "it was split off before";
  });
  EXPECT_THROW(local::run(1, [&](const Group& group) { group.assume_links(at::ones({5})); }),
               Error);
}

TEST(Algorithms, HaveNames) {
  for (const auto algorithm : kAlgorithms) EXPECT_EQ(algorithm_from(name(algorithm)), algorithm);
  EXPECT_EQ(algorithm_from("auto"), Algorithm::automatic);
}

}  // namespace
}  // namespace troika::comm
