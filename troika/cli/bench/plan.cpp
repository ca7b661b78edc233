#include "troika/cli/bench/plan.h"

#include <fmt/format.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cli/bench/peers/peer.h"
#include "troika/cli/bench/words.h"
#include "troika/comm/messages/backend.h"

namespace troika::cli::bench {

namespace {

using comm::Operation;

// A larger number is probably a mistake, and exceeds the launcher's limit.
constexpr int64_t kMaxRanks = 4096;
constexpr std::array kOperations{Operation::all_reduce, Operation::reduce_scatter,
                                 Operation::all_gather, Operation::broadcast};
constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 6> kTypes{
    {{"float32", c10::ScalarType::Float},
     {"float64", c10::ScalarType::Double},
     {"float16", c10::ScalarType::Half},
     {"bfloat16", c10::ScalarType::BFloat16},
     {"int32", c10::ScalarType::Int},
     {"int64", c10::ScalarType::Long}}};

Operation operation_from(const std::string& word) {
  std::vector<std::string> names;
  for (const Operation operation : kOperations) {
    if (comm::name(operation) == word) return operation;
    names.emplace_back(comm::name(operation));
  }
  refuse_name("operation", word, names);
}

c10::ScalarType type_from(const std::string& word) {
  std::vector<std::string> names;
  for (const auto& [name, type] : kTypes) {
    if (name == word) return type;
    names.emplace_back(name);
  }
  refuse_name("dtype", word, names);
}

Buffers buffers_from(const std::string& word) {
  std::vector<std::string> names;
  for (const Buffers buffers : {Buffers::shared, Buffers::ordinary}) {
    if (name(buffers) == word) return buffers;
    names.emplace_back(name(buffers));
  }
  refuse_name("kind of buffers", word, names);
}

std::vector<std::string> available_backends() {
  std::vector<std::string> names;
  for (const auto& row : comm::backends()) {
    if (row.why_unavailable().empty()) names.emplace_back(row.name);
  }
  return names;
}

int ranks_from(const std::string& word) {
  const auto ranks = parse_int(word);
  if (!ranks || *ranks < 1 || *ranks > kMaxRanks) {
    refuse("number of ranks", word, fmt::format("an integer from 1 to {}", kMaxRanks));
  }
  return static_cast<int>(*ranks);
}

void check_together(const Plan& plan) {
  const bool plain = plan.operation == Operation::all_reduce && plan.type == c10::ScalarType::Float;
  if (!plain && (!plan.against.empty() || plan.zero_copy_limit)) {
    refuse("--against and --zero-copy-limit do not go with these calls",
           fmt::format("{} of {}", comm::name(plan.operation), plan.dtype),
           "all_reduce of float32");
  }
  if (plan.operation != Operation::all_reduce &&
      plan.algorithms != std::vector{comm::Algorithm::automatic}) {
    refuse("--algorithms do not go with this operation", std::string(comm::name(plan.operation)),
           "all_reduce, which alone has several");
  }
  for (const int64_t bytes : plan.sizes) {
    for (const int ranks : plan.ranks) {
      if (elements(plan, bytes, ranks) > 0) continue;
      refuse(fmt::format("size is too small for {} of {} on {} ranks", comm::name(plan.operation),
                         plan.dtype, ranks),
             fmt::format("{} bytes", bytes), "one element at least");
    }
  }
}

}  // namespace

std::vector<std::string> arguments(const Words& words) {
  std::vector<std::string> list{
      "--operation=" + words.operation,
      "--algorithms=" + words.algorithms,
      "--ranks=" + words.ranks,
      "--sizes=" + words.sizes,
      "--dtype=" + words.dtype,
      "--buffers=" + words.buffers,
      fmt::format("--min-time={}", words.min_time),
  };
  if (!words.backends.empty()) list.push_back("--backends=" + words.backends);
  if (!words.against.empty()) list.push_back("--against=" + words.against);
  if (words.zero_copy_limit) list.emplace_back("--zero-copy-limit");
  return list;
}

std::string_view name(Buffers buffers) {
  return buffers == Buffers::shared ? "shared" : "ordinary";
}

Plan make_plan(const Words& words) {
  Plan plan;
  plan.operation = operation_from(words.operation);
  plan.type = type_from(words.dtype);
  plan.dtype = words.dtype;
  plan.backends = words.backends.empty() ? available_backends()
                                         : each(words.backends, [](const std::string& word) {
                                             return std::string(comm::backend(word).name);
                                           });
  if (plan.backends.empty()) refuse("no back end to measure", "none in this build", "one at least");
  plan.algorithms =
      each(words.algorithms, [](const std::string& word) { return comm::algorithm_from(word); });
  plan.ranks = each(words.ranks, ranks_from);
  plan.sizes = each(words.sizes, bytes_from);
  plan.buffers = each(words.buffers, buffers_from);
  if (!words.against.empty()) {
    plan.against =
        each(words.against, [](const std::string& word) { return std::string(peer(word).name); });
  }
  plan.min_seconds = seconds_from(words.min_time);
  plan.zero_copy_limit = words.zero_copy_limit;
  check_together(plan);
  return plan;
}

bool needs_mpi(const Plan& plan) {
  return std::ranges::count(plan.backends, "mpi") > 0 ||
         std::ranges::count(plan.against, "mpi") > 0;
}

int64_t elements(const Plan& plan, int64_t bytes, int ranks) {
  const int64_t fit = bytes / static_cast<int64_t>(c10::elementSize(plan.type));
  const bool in_blocks =
      plan.operation == Operation::reduce_scatter || plan.operation == Operation::all_gather;
  return in_blocks ? fit / ranks * ranks : fit;
}

}  // namespace troika::cli::bench
